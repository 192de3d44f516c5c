"""Unpacks one layer of an image: a tar archive becomes a folder that overlayfs can stack.

Runs in the unpacker, whose root is that very folder: nothing else exists there. Still, no link is followed and no name
may lead out of the folder, so that its content is exactly that of the archive. A whiteout is written in overlayfs's
form: a character device 0/0, or an opaque folder. Set-id bits, devices and extended attributes are dropped, and
counted.
"""

from __future__ import annotations

import os
import stat
import tarfile
from typing import Any, Dict, List, Set, Tuple

# What overlayfs looks for when it is mounted with `userxattr` (Documentation/filesystems/overlayfs.rst).
OPAQUE = "user.overlay.opaque"
_WHITEOUT = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"
_MOST_PARTS = 100
_SET_ID = stat.S_ISUID | stat.S_ISGID
_NOBODY = 65534
_CHUNK_BYTES = 1 << 20
_NAMED = 12


class LayerError(Exception):
    """The archive is refused.

    Attributes:
        kind: `"hostile"` for a name that leads out of the folder, `"bounds"` for too much content, `"damaged"` for a
            malformed archive.
        detail: A description of the fault.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class UnpackedLayer:
    """The folder that an archive is unpacked into.

    Args:
        root: A descriptor of the folder, which is empty.
        max_entries: How many entries the archive may have.
        owns: Whether files get the owners that the archive names; otherwise all belong to this process's user.
    """

    # Whether the archive is the whole layer, in which the names of whiteouts have their meaning.
    is_whole = True

    def __init__(self, root: int, max_entries: int, owns: bool) -> None:
        self._root = root
        self._max_entries = max_entries
        self._owns = owns
        # Folders get their times and modes when nothing is written into them any more.
        self._folders: Dict[Tuple[str, ...], tarfile.TarInfo] = {}
        self._white: Set[Tuple[str, ...]] = set()
        self.entries = 0
        self.dropped: Dict[str, int] = {"set_id": 0, "devices": 0, "owners": 0}
        self.dropped_names: List[str] = []

    def unpack(self, archive: Any) -> None:
        """Unpacks all entries of a stream.

        Raises:
            LayerError: The archive is refused; the folder is to be deleted.
        """
        for entry in archive:
            # It would keep every entry in memory.
            archive.members = []
            self.entries += 1

            if self.entries > self._max_entries:
                raise LayerError("bounds", f"it has more than {self._max_entries} entries")

            self._add(archive, entry)

        for parts, entry in reversed(list(self._folders.items())):
            self._finish_folder(parts, entry)

    def _add(self, archive: Any, entry: tarfile.TarInfo) -> None:
        parts = _parts(entry.name)

        if not parts:
            if entry.isdir():
                self._folders[()] = entry

            return

        folder = self._open_folder(parts[:-1], entry.name)
        try:
            if self.is_whole and parts[-1] == _OPAQUE_MARK:
                os.setxattr(folder, OPAQUE, b"y")
            elif self.is_whole and parts[-1].startswith(_WHITEOUT):
                self._whiteout(folder, (*parts[:-1], parts[-1][len(_WHITEOUT) :]), entry.name)
            else:
                self._make(archive, entry, parts, folder)
        except OSError as error:
            raise LayerError("damaged", f"{entry.name!r}: {error}") from None
        finally:
            os.close(folder)

    def _open_folder(self, parts: Tuple[str, ...], name: str) -> int:
        """Opens a folder of the layer, component by component and never through a link; creates missing folders."""
        fd = os.dup(self._root)

        for part in parts:
            try:
                try:
                    inner = _open_beneath(fd, part)
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=fd)
                    inner = _open_beneath(fd, part)
            except OSError as error:
                raise LayerError(
                    "hostile", f"{name!r} leads through {part!r}, which is no folder: {error.strerror}"
                ) from None
            finally:
                os.close(fd)

            fd = inner

        return fd

    def _whiteout(self, folder: int, parts: Tuple[str, ...], name: str) -> None:
        if parts[-1] in ("", ".", ".."):
            raise LayerError("hostile", f"{name!r} removes what is not in the image")

        self._white.add(parts)
        old = _lstat(parts[-1], folder)

        # A whiteout speaks of the layers below: what this layer has itself stays.
        if old is None:
            os.mknod(parts[-1], stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
        elif stat.S_ISDIR(old.st_mode):
            inner = _open_beneath(folder, parts[-1])
            os.setxattr(inner, OPAQUE, b"y")
            os.close(inner)

    def _make(self, archive: Any, entry: tarfile.TarInfo, parts: Tuple[str, ...], folder: int) -> None:
        name = parts[-1]
        old = _lstat(name, folder)

        if old is not None and not (entry.isdir() and stat.S_ISDIR(old.st_mode)):
            _remove(name, folder, old)
            self._folders.pop(parts, None)
            old = None

        if entry.isdir():
            if old is None:
                os.mkdir(name, 0o755, dir_fd=folder)

            if parts in self._white:
                inner = _open_beneath(folder, name)
                os.setxattr(inner, OPAQUE, b"y")
                os.close(inner)

            self._folders.pop(parts, None)
            self._folders[parts] = entry
        elif entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
            self._give_link(name, folder, entry)
        elif entry.islnk():
            self._link(entry, name, folder)
        elif entry.isreg():
            if entry.issparse():
                # The holes of a sparse file are not among the bytes that were counted.
                raise LayerError("bounds", f"{entry.name!r} is a sparse file")

            self._write(archive, entry, name, folder)
        else:
            self._drop("devices", entry.name)

    def _link(self, entry: tarfile.TarInfo, name: str, folder: int) -> None:
        target = _parts(entry.linkname)

        if not target:
            raise LayerError("hostile", f"{entry.name!r} is a hard link to {entry.linkname!r}")

        source = self._open_folder(target[:-1], entry.linkname)
        try:
            os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise LayerError(
                "hostile",
                f"{entry.name!r} is a hard link to {entry.linkname!r}, which this layer does not have",
            ) from None
        finally:
            os.close(source)

    def _write(self, archive: Any, entry: tarfile.TarInfo, name: str, folder: int) -> None:
        source = archive.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            while True:
                chunk = source.read(_CHUNK_BYTES) if source is not None else b""

                if not chunk:
                    break

                _write_all(out, chunk)

            self._give(out, entry)
        finally:
            os.close(out)

    def _finish_folder(self, parts: Tuple[str, ...], entry: tarfile.TarInfo) -> None:
        fd = self._open_folder(parts, entry.name)
        try:
            self._give(fd, entry, 0 if self._owns else 0o700)
        finally:
            os.close(fd)

    def _give(self, fd: int, entry: tarfile.TarInfo, at_least: int = 0) -> None:
        """Gives a file or folder its owner, mode and time."""
        if entry.mode & _SET_ID:
            self._drop("set_id", entry.name)

        if self._owns:
            os.fchown(fd, *self._owner(entry))

        os.fchmod(fd, entry.mode & 0o1777 | at_least)
        os.utime(fd, (entry.mtime, entry.mtime))

    def _give_link(self, name: str, folder: int, entry: tarfile.TarInfo) -> None:
        if self._owns:
            os.chown(name, *self._owner(entry), dir_fd=folder, follow_symlinks=False)

        os.utime(name, (entry.mtime, entry.mtime), dir_fd=folder, follow_symlinks=False)

    def _owner(self, entry: tarfile.TarInfo) -> Tuple[int, int]:
        if max(entry.uid, entry.gid) > _NOBODY:
            self._drop("owners", entry.name)

        return min(entry.uid, _NOBODY), min(entry.gid, _NOBODY)

    def _drop(self, what: str, name: str) -> None:
        self.dropped[what] += 1

        if len(self.dropped_names) < _NAMED:
            self.dropped_names.append(name[:200])


def _parts(name: str) -> Tuple[str, ...]:
    """Splits a name of the archive; an absolute one is relative to the root of the image."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))

    if ".." in parts:
        raise LayerError("hostile", f"{name!r} leaves the image")

    if len(parts) > _MOST_PARTS:
        raise LayerError("bounds", f"{name[:80]!r}... lies deeper than {_MOST_PARTS} folders")

    return parts


def _open_beneath(folder: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _lstat(name: str, folder: int) -> Any:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _remove(name: str, folder: int, info: os.stat_result) -> None:
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(name, dir_fd=folder)
        return

    inner = _open_beneath(folder, name)
    try:
        for entry in os.listdir(inner):
            _remove(entry, inner, os.lstat(entry, dir_fd=inner))
    finally:
        os.close(inner)

    os.rmdir(name, dir_fd=folder)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
