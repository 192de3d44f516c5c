"""Container images that tests make: layers as tar archives, layouts of them, and a small system of busybox."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GZIPPED = "application/vnd.oci.image.layer.v1.tar+gzip"
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
PLAIN = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Entry:
    """One entry of a layer; the kind follows from what is given."""

    name: str
    content: bytes | None = None
    link: str | None = None
    hard_link: str | None = None
    device: bool = False
    mode: int = 0o755
    uid: int = 0


def tar_of(entries: Iterable[Entry]) -> bytes:
    """A layer's archive."""
    written = io.BytesIO()

    with tarfile.open(fileobj=written, mode="w") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.uid

            if entry.content is not None:
                info.size = len(entry.content)
                archive.addfile(info, io.BytesIO(entry.content))
                continue

            info.type, info.linkname = tarfile.DIRTYPE, ""

            if entry.device:
                info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
            elif entry.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.hard_link is not None:
                info.type, info.linkname = tarfile.LNKTYPE, entry.hard_link

            archive.addfile(info)

    return written.getvalue()


@dataclass
class Layout:
    """An OCI layout in a folder."""

    folder: Path
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)

    def blob(self, content: bytes) -> str:
        """Store content and return its digest."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.folder / "blobs" / "sha256" / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"sha256:{digest}"

    def path(self, digest: str) -> Path:
        """Where content is."""
        return self.folder / "blobs" / "sha256" / digest.partition(":")[2]

    def add(
        self,
        layers: Sequence[bytes],
        *,
        tag: str = "latest",
        config: Mapping[str, Any] | None = None,
        architecture: str | None = None,
        compressed: bool = True,
        pack: Callable[[bytes], bytes] | None = None,
    ) -> dict[str, Any]:
        """Store an image under a tag, with another compression than gzip if `pack` is zstd's; returns its manifest."""
        stored = [gzip.compress(layer, 1, mtime=0) if compressed else layer for layer in layers]
        kind = GZIPPED if compressed else PLAIN

        if pack is not None:
            stored, kind = [pack(layer) for layer in layers], ZSTD

        blobs = [{"mediaType": kind, "digest": self.blob(one), "size": len(one)} for one in stored]
        described = {
            "os": "linux",
            "architecture": architecture or own_architecture(),
            "config": dict(config or {}),
            "history": [{"created_by": "tests"} for _ in layers],
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
            },
        }
        content = json.dumps(described).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": self.blob(content),
                "size": len(content),
            },
            "layers": blobs,
        }
        self.put(manifest, tag)
        return manifest

    def put(self, manifest: Mapping[str, Any], tag: str) -> str:
        """Store a manifest under a tag; returns its digest."""
        content = json.dumps(manifest).encode()
        digest = self.blob(content)
        self.tags[tag] = {
            "mediaType": manifest.get("mediaType"),
            "digest": digest,
            "size": len(content),
            "annotations": {"org.opencontainers.image.ref.name": tag},
        }
        self.folder.joinpath("oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.folder.joinpath("index.json").write_text(
            json.dumps({"schemaVersion": 2, "manifests": list(self.tags.values())})
        )
        return digest


def own_architecture() -> str:
    """What images call the architecture of this machine."""
    import platform

    from fumehood.templates.images.description import ARCHITECTURES

    return ARCHITECTURES.get(platform.machine(), platform.machine())


def needs_program(name: str) -> str:
    """Where a program is; skips the test where it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/bin")

    if found is None:
        pytest.skip(f"{name} is not installed: `make programs` installs it")

    return found


_NAMES = """sh ls cat echo id env pwd mkdir rm cp mv sleep touch chmod chown grep stat head wc true false test adduser
addgroup wget nc mount dd ln find readlink seq kill ps tail sed"""


def busybox_layer(*more: Entry) -> bytes:
    """A whole small system, as Alpine's without musl: one static program under all its names."""
    program = Path(needs_program("busybox")).read_bytes()
    names = _NAMES.split()
    return tar_of(
        [
            Entry("bin"),
            Entry("bin/busybox", program),
            *(Entry(f"bin/{name}", link="busybox") for name in names),
            Entry("etc"),
            Entry(
                "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:33:33::/home/app:/bin/sh\n", mode=0o644
            ),
            Entry("etc/group", b"root:x:0:\napp:x:33:\n", mode=0o644),
            Entry("etc/os-release", b'ID=tiny\nPRETTY_NAME="tiny"\n', mode=0o644),
            Entry("root", mode=0o700),
            Entry("tmp", mode=0o1777),
            Entry("usr"),
            *more,
        ]
    )
