"""Reads an image from this machine's disk: an OCI layout, or the archive that `docker save` writes.

Runs in the host process. Both are untrusted: names in them become paths only if they are digests, or are members that
the archive itself lists; only regular files are opened, and no links in a layout; JSON is bounded; nothing is
extracted.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from fumehood.errors import ImageDamagedError, ImageError, ImageNotFoundError
from fumehood.templates.images.description import parse
from fumehood.templates.images.reference import DIGEST, Reference

_MOST_BYTES = 4 << 20
_MOST_MEMBERS = 100_000
_NAME_OF_TAG = ("org.opencontainers.image.ref.name", "io.containerd.image.name")


class LayoutSource:
    """A folder with an OCI image layout.

    Args:
        reference: The folder, and the tag in it.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def read_manifest(self, version: str) -> bytes:
        """Returns the manifest of a tag or digest; an empty one is the only image."""
        if not DIGEST.fullmatch(version):
            version = self._digest_of(version)

        with self.open_blob(version) as file:
            return _bounded(file, self._reference)

    @contextmanager
    def open_blob(self, digest: str) -> Iterator[BinaryIO]:
        """Opens content by its digest."""
        path = os.path.join(self._reference.place, "blobs", *digest.split(":"))
        try:
            file = _open_regular(path, os.O_NOFOLLOW)
        except FileNotFoundError:
            raise ImageDamagedError(
                image=self._reference.text, reason=f"it has no content {digest}"
            ) from None
        except OSError as error:
            raise ImageError(image=self._reference.text, reason=str(error)) from None

        with file:
            yield file

    def _digest_of(self, tag: str) -> str:
        path = os.path.join(self._reference.place, "index.json")
        try:
            with _open_regular(path, os.O_NOFOLLOW) as file:
                index = parse(_bounded(file, self._reference), self._reference)
        except OSError as error:
            raise ImageNotFoundError(
                image=self._reference.text,
                reason=f"{self._reference.place!r} is no OCI layout: {error.strerror}",
                hint="name the folder that has index.json and blobs",
            ) from None

        entries = [one for one in index.get("manifests", ()) if isinstance(one, dict)]
        tags = [_tag_of(one) for one in entries]
        chosen = [one for one, name in zip(entries, tags, strict=True) if not tag or name == tag]

        if len(chosen) != 1 or not DIGEST.fullmatch(str(chosen[0].get("digest"))):
            known = ", ".join(sorted(name for name in tags if name)[:20]) or "none"
            raise ImageNotFoundError(
                image=self._reference.text,
                reason=f"it has {len(chosen)} images {f'with the tag {tag!r}' if tag else ''}; its tags are: {known}",
                hint="name a tag: oci:FOLDER:TAG",
            )

        return str(chosen[0]["digest"])


class ArchiveSource:
    """A tar archive as `docker save` writes it; its layers are named by the digest of their content.

    Args:
        reference: The file, and the tag in it.
    """

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._members: dict[str, tarfile.TarInfo] = {}
        self._blobs: dict[str, str] = {}
        try:
            self._file = _open_regular(reference.place)
        except OSError as error:
            raise ImageNotFoundError(image=reference.text, reason=str(error.strerror)) from None

        try:
            self._archive = self._listed()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _listed(self) -> tarfile.TarFile:
        reference = self._reference
        try:
            archive = tarfile.open(fileobj=self._file, mode="r:")  # noqa: SIM115

            for count, member in enumerate(archive, 1):
                if count > _MOST_MEMBERS:
                    raise ImageError(image=reference.text, reason=f"it has more than {_MOST_MEMBERS} members")

                self._members[member.name.removeprefix("./")] = member
        except (tarfile.TarError, EOFError, ValueError, OSError) as error:
            raise ImageDamagedError(
                image=reference.text,
                reason=f"it is no plain tar archive: {error}",
                hint="unpack it with gunzip first",
            ) from None

        return archive

    def read_manifest(self, version: str) -> bytes:
        """Returns a manifest that is made from the archive's own list."""
        with self._open("manifest.json") as file:
            images = json.loads(_bounded(file, self._reference))

        images = [one for one in images if isinstance(one, dict)] if isinstance(images, list) else []
        chosen = [
            one
            for one in images
            if not version or any(_is_named(str(tag), version) for tag in one.get("RepoTags") or ())
        ]

        if len(chosen) != 1:
            raise ImageNotFoundError(
                image=self._reference.text,
                reason=f"it has {len(chosen)} images{f' with the tag {version!r}' if version else ''}",
                hint="save one image alone, or name its tag: docker-archive:FILE:TAG",
            )

        with self._open(str(chosen[0].get("Config"))) as file:
            config = parse(_bounded(file, self._reference), self._reference)

        diff_ids = _diff_ids(config)
        names = [str(name) for name in chosen[0].get("Layers") or ()]

        if len(names) != len(diff_ids):
            raise ImageDamagedError(
                image=self._reference.text,
                reason=f"it lists {len(names)} layers, its configuration {len(diff_ids)}",
            )

        self._blobs = dict(zip(diff_ids, names, strict=True))
        return json.dumps({"inline_config": config, "layers": [{"digest": one} for one in diff_ids]}).encode()

    @contextmanager
    def open_blob(self, digest: str) -> Iterator[BinaryIO]:
        """Opens a layer by the digest of its content."""
        with self._open(self._blobs.get(digest, digest)) as file:
            yield file

    @contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        member = self._members.get(name)

        # Old archives list a layer that two images share as a link.
        if member is not None and member.issym():
            member = self._members.get(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))

        file = self._archive.extractfile(member) if member is not None and member.isreg() else None

        if file is None:
            raise ImageDamagedError(
                image=self._reference.text,
                reason=f"it has no file {name!r}",
                hint="make it with `docker save` or `skopeo copy ... docker-archive:FILE`",
            )

        with file:
            yield cast("BinaryIO", file)


def _open_regular(path: str, flags: int = 0) -> BinaryIO:
    """Opens a regular file; a FIFO or a device in its place would block the pull for ever.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)

    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", path)

    return os.fdopen(fd, "rb")


def _tag_of(entry: dict[str, Any]) -> str:
    notes = entry.get("annotations")
    names = (str(notes.get(name, "")) for name in _NAME_OF_TAG) if isinstance(notes, dict) else ()
    return next((name.rpartition(":")[2] for name in names if name), "")


def _diff_ids(config: dict[str, Any]) -> list[str]:
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    return [str(one) for one in found] if isinstance(found, list) else []


def _is_named(tag: str, version: str) -> bool:
    """Whether an archive's name of an image is this tag, or this name with a tag, with or without its registry."""
    return tag in (version, f"docker.io/{version}", f"docker.io/library/{version}") or (
        tag.rpartition(":")[2] == version
    )


def _bounded(file: BinaryIO, reference: Reference) -> bytes:
    content = file.read(_MOST_BYTES + 1)

    if len(content) > _MOST_BYTES:
        raise ImageError(image=reference.text, reason=f"its description is larger than {_MOST_BYTES} bytes")

    return content
