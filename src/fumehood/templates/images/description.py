"""The description of an image: its layers in order, and its configuration, checked and bounded.

Runs in the host process; reads JSON of an unknown author, after its digest was checked.
"""

from __future__ import annotations

import hashlib
import json
import platform
import posixpath
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from fumehood.errors import ImageDamagedError, ImageError, ImagePlatformError
from fumehood.templates.images.reference import DIGEST, Reference

# As images name architectures (https://go.dev/doc/install/source#environment).
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MOST_LAYERS = 127
_MOST_NESTED = 4
_MOST_BYTES = 4 << 20
MAX_VOLUMES = 32
_MOST_VARIABLES = 500
_MOST_TEXT = 32_768
_VARIABLE = re.compile(r"[^=\0]+=[^\0]*", re.DOTALL)


class ImageSource(Protocol):
    """The interface of a source of images: a registry, a folder or an archive."""

    def read_manifest(self, version: str) -> bytes:
        """Returns the bytes of a manifest or an index."""

    def open_blob(self, digest: str) -> AbstractContextManager[BinaryIO]:
        """Opens content by its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlob:
    """One layer as it is stored.

    Attributes:
        digest: The digest of the stored file; equal to `diff_id` if it is not compressed.
        diff_id: The digest of the uncompressed archive.
        compression: gzip, zstd or none.
        size_bytes: The size of the stored file; 0 if unknown.
    """

    digest: str
    diff_id: str
    compression: str
    size_bytes: int


def image_path(path: str) -> str:
    """Returns the normalized absolute path in an image; two leading slashes, which `normpath` keeps, become one."""
    return "/" + posixpath.normpath(f"/{path}").lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """The part of an image's configuration that determines how its programs are started.

    Attributes:
        envs: Environment variables.
        workdir: The folder in which programs start.
        volumes: Folders for data, which sandboxes may write.
        user: The user of its programs, by name or number, with a group behind a colon; empty: root.
        entrypoint: The program that is always started.
        command: The arguments of `entrypoint`; without one, the program and its arguments.
        shell: The program with its arguments that runs the lines of RUN.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    volumes: tuple[str, ...] = ()
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDescription:
    """An image, without its content.

    Attributes:
        digest: The digest of its configuration, which identifies the image.
        config: How its programs are started.
        layers: Its layers, the lowest first.
    """

    digest: str
    config: ImageConfig
    layers: tuple[LayerBlob, ...]


def describe(source: ImageSource, reference: Reference) -> ImageDescription:
    """Reads the description of an image for this machine; no layer is read.

    Raises:
        ImagePlatformError: The image has no variant for this machine.
        ImageDamagedError: A digest is wrong, or a document has the wrong form.
    """
    manifest = _manifest(source, reference)

    if "inline_config" in manifest:
        config, digest = manifest["inline_config"], ""
        content = json.dumps(config, sort_keys=True).encode()
    else:
        digest = _digest(manifest.get("config"), reference)

        with source.open_blob(digest) as file:
            content = file.read(_MOST_BYTES + 1)

        check_digest(content, digest, reference)
        config = parse(content, reference)

    _check_platform(config, reference)
    return ImageDescription(
        digest=digest or f"sha256:{hashlib.sha256(content).hexdigest()}",
        config=read_config(config, reference),
        layers=_layers(manifest, config, reference),
    )


def _manifest(source: ImageSource, reference: Reference) -> dict[str, Any]:
    """Returns the manifest for this machine; an index is followed to it."""
    version = reference.version

    for _ in range(_MOST_NESTED):
        content = source.read_manifest(version)

        if DIGEST.fullmatch(version):
            check_digest(content, version, reference)

        manifest = parse(content, reference)

        if "manifests" not in manifest:
            return manifest

        version = _chosen(manifest["manifests"], reference)

    raise ImageDamagedError(image=reference.text, reason="its indexes are nested too deeply")


def _chosen(entries: object, reference: Reference) -> str:
    wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
    found = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
    platforms = [one.get("platform") or {} for one in found]
    systems = [(str(one.get("os", "linux")), str(one.get("architecture", wanted))) for one in platforms]

    for entry, system in zip(found, systems, strict=True):
        if system == ("linux", wanted):
            return _digest(entry, reference)

    known = ", ".join(sorted({"/".join(one) for one in systems if "unknown" not in one})) or "none"
    raise _foreign(reference, wanted, known)


def _check_platform(config: Mapping[str, Any], reference: Reference) -> None:
    wanted = ARCHITECTURES.get(platform.machine(), platform.machine())
    system = (str(config.get("os", "linux")), str(config.get("architecture", wanted)))

    if system != ("linux", wanted):
        raise _foreign(reference, wanted, "/".join(system))


def _foreign(reference: Reference, wanted: str, known: str) -> ImagePlatformError:
    return ImagePlatformError(
        image=reference.text,
        reason=f"it is for {known}, and this machine is linux/{wanted}",
        hint="build or name one for this architecture: programs of another one are not emulated",
    )


def _layers(
    manifest: Mapping[str, Any], config: Mapping[str, Any], reference: Reference
) -> tuple[LayerBlob, ...]:
    blobs = manifest.get("layers")
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None

    if not isinstance(blobs, list) or not isinstance(diff_ids, list) or len(blobs) != len(diff_ids):
        raise ImageDamagedError(
            image=reference.text,
            reason="its manifest and its configuration list different layers",
            hint="it may be an artifact and no image, or in Docker's format of before 2016: push it anew",
        )

    if len(blobs) > MOST_LAYERS:
        raise ImageError(
            image=reference.text, reason=f"it has {len(blobs)} layers; {MOST_LAYERS} are the most"
        )

    return tuple(_layer(blob, diff_id, reference) for blob, diff_id in zip(blobs, diff_ids, strict=True))


def _layer(blob: object, diff_id: object, reference: Reference) -> LayerBlob:
    digest = _digest(blob, reference)
    assert isinstance(blob, dict)
    media_type = str(blob.get("mediaType", "tar"))

    if not DIGEST.fullmatch(str(diff_id)):
        raise ImageDamagedError(
            image=reference.text, reason=f"the digest of a layer is {str(diff_id)[:100]!r}"
        )

    if blob.get("urls"):
        raise ImageError(image=reference.text, reason="a layer of it lies outside of its registry")

    compression = next((name for name in ("gzip", "zstd") if media_type.endswith(name)), "none")
    size = blob.get("size")
    return LayerBlob(
        digest=digest,
        diff_id=str(diff_id),
        compression=compression,
        size_bytes=size if isinstance(size, int) and size > 0 else 0,
    )


def read_config(config: Mapping[str, Any], reference: Reference) -> ImageConfig:
    """Reads the part of a configuration that determines how programs are started."""
    found = config.get("config")
    settings: Mapping[str, Any] = found if isinstance(found, dict) else {}
    variables = _texts(settings.get("Env"))

    if len(variables) > _MOST_VARIABLES or any(_VARIABLE.fullmatch(one) is None for one in variables):
        raise ImageError(image=reference.text, reason="its environment variables are too many or malformed")

    workdir = str(settings.get("WorkingDir") or "/")
    volumes = tuple(map(image_path, _texts(list(settings.get("Volumes") or ()))))

    if len(volumes) > MAX_VOLUMES:
        raise ImageError(image=reference.text, reason=f"it names more than {MAX_VOLUMES} volumes")

    return ImageConfig(
        envs={name: value for name, _, value in (one.partition("=") for one in variables)},
        workdir=image_path(workdir),
        volumes=volumes,
        user=str(settings.get("User") or ""),
        entrypoint=_texts(settings.get("Entrypoint")),
        command=_texts(settings.get("Cmd")),
        shell=_texts(settings.get("Shell")) or ("/bin/sh", "-c"),
    )


def _texts(value: object) -> tuple[str, ...]:
    found: Iterable[object] = value if isinstance(value, list) else ()
    return tuple(str(one)[:_MOST_TEXT] for one in found)


def _digest(descriptor: object, reference: Reference) -> str:
    digest = str(descriptor.get("digest")) if isinstance(descriptor, dict) else ""

    if DIGEST.fullmatch(digest) is None:
        raise ImageDamagedError(
            image=reference.text, reason=f"it names content by {digest[:100]!r}, no SHA-256"
        )

    return digest


def check_digest(content: bytes, digest: str, reference: Reference) -> None:
    """Compares content with the digest that names it.

    Raises:
        ImageDamagedError: The digests differ.
    """
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"

    if found != digest:
        raise ImageDamagedError(
            image=reference.text,
            reason=f"what is named {digest} has the digest {found}",
            hint="fetch or push it anew",
        )


def parse(content: bytes, reference: Reference) -> dict[str, Any]:
    """Parses JSON of an image.

    Raises:
        ImageDamagedError: The content is not JSON, or not an object.
    """
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ImageDamagedError(image=reference.text, reason=f"its description is no JSON: {error}") from None

    if not isinstance(parsed, dict):
        raise ImageDamagedError(image=reference.text, reason="its description is no JSON object")

    return parsed
