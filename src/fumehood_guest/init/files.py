"""Files: init's operations on the guest's files for the host.

Runs in init, with the rights of the guest user and the guest's own root: a link leads only to places that guest code
can reach itself. Each request does a bounded amount of work, so that a huge or special file cannot block init; anything
but a regular file is refused before it is read or written.
"""

from __future__ import annotations

import errno
import functools
import grp
import json
import os
import pwd
import shutil
import stat
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from fumehood_guest.shared.folders import HOME
from fumehood_guest.shared.writable_files import PART_PREFIX, REPLACING_PREFIX

MAX_CHUNK_BYTES = 1 << 20
MAX_OPEN_HANDLES = 64
MAX_ENTRIES = 2_000
# Bound on the descriptions in one reply; a frame's header holds twice as much.
_MAX_PAGE_BYTES = 1 << 19
# Extended attributes reported as metadata; code in the sandbox may set any, so the number and size are bounded.
METADATA_PREFIX = "user.e2b."
_MAX_METADATA = 64
_MAX_METADATA_BYTES = 8 * 1024

Reply = Tuple[Any, bytes]

_places: Dict[str, str] = {}


class Files:
    """Open handles, and the requests on paths."""

    def __init__(self) -> None:
        self._handles: Dict[int, _Opened] = {}
        self._next_handle = 1

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {
            "open": self.open,
            "read": self.read,
            "write": self.write,
            "close": self.close,
            "stat": stat_entry,
            "list": list_entries,
            "make_dir": make_dir,
            "remove": remove,
            "rename": rename,
        }

    def open(
        self,
        path: str,
        mode: str,
        metadata: Optional[Dict[str, str]] = None,
        beneath: Optional[str] = None,
    ) -> Reply:
        """Opens a regular file for reading, or a new one that replaces `path` once it is complete.

        The new file gets the given metadata, and none of the replaced one. With `beneath`, a file to read must be in
        that folder after all links are resolved.
        """
        if len(self._handles) >= MAX_OPEN_HANDLES:
            raise OSError(errno.EMFILE, f"more than {MAX_OPEN_HANDLES} transfers at once")

        full = absolute(path)
        opened = _open_to_replace(full, metadata or {}) if mode == "w" else _open_to_read(full, beneath)

        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = opened
        return {"handle": handle, "size": os.fstat(opened.fd).st_size}, b""

    def read(self, handle: int, offset: int, length: int) -> Reply:
        """Reads at most `MAX_CHUNK_BYTES` at `offset`; an empty payload is the end."""
        return None, os.pread(self._handles[handle].fd, min(length, MAX_CHUNK_BYTES), offset)

    def write(self, handle: int, payload: bytes = b"") -> Reply:
        """Appends a chunk to the file that was opened under this handle."""
        view = memoryview(payload)

        while view:
            view = view[os.write(self._handles[handle].fd, view) :]

        return None, b""

    def close(self, handle: int, keep: bool) -> Reply:
        """Ends a transfer; a new file is kept as a whole, or discarded. Closing twice is no error."""
        opened = self._handles.pop(handle, None)

        if opened is None:
            return None, b""

        os.close(opened.fd)

        if opened.target is None:
            return None, b""

        try:
            if keep:
                os.replace(opened.path, opened.target)
                return entry(opened.target), b""
        except OSError:
            os.unlink(opened.path)
            raise

        os.unlink(opened.path)
        return None, b""


class _Opened:
    """A file in transfer; `target` is the final path of a new one."""

    __slots__ = ("fd", "path", "target")

    def __init__(self, fd: int, path: str, target: Optional[str] = None) -> None:
        self.fd = fd
        self.path = path
        self.target = target


def _open_to_read(path: str, beneath: Optional[str]) -> _Opened:
    # Non-blocking: opening a FIFO would otherwise block init until its other end is opened.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        # First: an error must not say what a file elsewhere is, either.
        _check_beneath(fd, beneath)
        _check_regular(os.fstat(fd))
    except OSError:
        os.close(fd)
        raise

    return _Opened(fd, path)


def _open_to_replace(path: str, metadata: Dict[str, str]) -> _Opened:
    """Opens a file next to the one that it will replace: on the same mount, so that the rename is atomic."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    mode = 0o644
    prefix = PART_PREFIX
    try:
        info = os.stat(target)
        _check_regular(info)
        mode = stat.S_IMODE(info.st_mode)
        prefix = REPLACING_PREFIX
    except FileNotFoundError:
        pass

    part = os.path.join(folder, f"{prefix}{os.urandom(8).hex()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, mode)

        for name, value in metadata.items():
            os.setxattr(fd, METADATA_PREFIX + name, os.fsencode(value))
    except OSError:
        os.close(fd)
        os.unlink(part)
        raise

    return _Opened(fd, part, target)


def _check_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, f"not a regular file but {kind(info.st_mode)}")


def _check_beneath(fd: int, folder: Optional[str]) -> None:
    """Raises PermissionError for an open file or folder that is not in `folder`, if one is given."""
    if not _is_beneath(fd, folder):
        raise PermissionError(errno.EACCES, f"a link leads out of {folder}")


def _is_beneath(fd: int, folder: Optional[str]) -> bool:
    if folder is None:
        return True

    return _lies_in(os.readlink(f"/proc/self/fd/{fd}"), os.path.realpath(absolute(folder)))


def stat_entry(path: str) -> Reply:
    """Describes one path; a link is described together with its target."""
    return entry(absolute(path)), b""


def list_entries(path: str, depth: int, offset: int = 0, beneath: Optional[str] = None) -> Reply:
    """Describes the entries beneath a folder, down to `depth`, in order, from entry number `offset` on.

    With `beneath`, the folder must be in that one, wherever links lead: its own entries are described, but no target
    of a link outside of it.
    """
    full = absolute(path)

    if beneath is not None:
        fd = os.open(full, os.O_PATH | os.O_CLOEXEC)
        try:
            _check_beneath(fd, beneath)
            # By the descriptor: the guest may put a link in place of the folder meanwhile.
            return _list(f"/proc/self/fd/{fd}", 1, offset, full, beneath)
        finally:
            os.close(fd)

    return _list(full, depth, offset, full, None)


def _list(folder: str, depth: int, offset: int, shown: str, beneath: Optional[str]) -> Reply:
    if not os.path.isdir(folder):
        os.stat(folder)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    found: List[Dict[str, Any]] = []
    room = _MAX_PAGE_BYTES

    for number, name in enumerate(_walk(folder, depth)):
        if number < offset:
            continue

        if len(found) == MAX_ENTRIES or room <= 0:
            return {"entries": found, "next": number}, b""

        try:
            described = entry(name, shown + name[len(folder) :], beneath)
        except OSError:
            # It was removed between the listing and this call, which is no error.
            continue

        room -= len(json.dumps(described))
        found.append(described)

    return {"entries": found, "next": None}, b""


def make_dir(path: str) -> Reply:
    """Makes a folder and its parents; the folder must not exist."""
    full = absolute(path)
    os.makedirs(full)
    return entry(full), b""


def remove(path: str) -> Reply:
    """Removes a file, a link, or a folder with its content."""
    full = absolute(path)

    if os.path.isdir(full) and not os.path.islink(full):
        try:
            shutil.rmtree(full)
        except PermissionError:
            _open_up(full)
            shutil.rmtree(full)
    else:
        os.remove(full)

    return None, b""


def rename(source: str, destination: str) -> Reply:
    """Moves a file or folder, also across the sandbox's mounts; makes the parents of the destination."""
    target = absolute(destination)
    origin = absolute(source)
    os.lstat(origin)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(origin, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise

        shutil.move(origin, target)

    return entry(target), b""


def absolute(path: str) -> str:
    """Resolves a path from the user's view: relative paths start in the home."""
    full = os.path.normpath(os.path.join(HOME, path))

    # A path reported earlier is a real one already, and may begin like another name.
    if any(_lies_in(full, place) for place in _places.values()):
        return full

    return next((place + full[len(name) :] for name, place in _places.items() if _lies_in(full, name)), full)


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def set_places(places: Dict[str, str]) -> None:
    """Sets where folders really are: a sandbox without a root of its own has them under other names."""
    _places.update(places)


def entry(path: str, shown: Optional[str] = None, beneath: Optional[str] = None) -> Dict[str, Any]:
    """Returns the description of one path in the format of the host's `FileInfo`.

    With `shown`, the description has this path. With `beneath`, a link out of that folder is described by itself.
    """
    info = os.lstat(path)
    shown = shown or path
    described: Dict[str, Any] = {"name": os.path.basename(shown), "path": shown}
    metadata: Dict[str, str] = {}

    if stat.S_ISLNK(info.st_mode):
        described["symlink_target"] = os.readlink(path)
        target = _open_target(path, beneath)

        if target is None:
            # Where its own text points.
            folder = os.path.dirname(shown)
            described["resolved_target"] = os.path.normpath(os.path.join(folder, described["symlink_target"]))
        else:
            try:
                described["resolved_target"] = os.readlink(f"/proc/self/fd/{target}")
                info = os.fstat(target)
                metadata = _metadata(f"/proc/self/fd/{target}")
            finally:
                os.close(target)
    else:
        metadata = _metadata(path)

    described.update(
        type=kind(info.st_mode),
        size_bytes=info.st_size,
        mode=stat.S_IMODE(info.st_mode),
        permissions=stat.filemode(info.st_mode),
        owner=_name_of_user(info.st_uid),
        group=_name_of_group(info.st_gid),
        modified_at=info.st_mtime,
    )

    if metadata:
        described["metadata"] = metadata

    return described


def _open_target(path: str, beneath: Optional[str]) -> Optional[int]:
    """Opens the final target of a link, as resolved by the kernel, which follows up to 40 links.

    Returns None for a link that is dangling, cyclic or leads out of the folder `beneath`.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None

    if _is_beneath(fd, beneath):
        return fd

    os.close(fd)
    return None


def _metadata(path: str) -> Dict[str, str]:
    """Returns the metadata of a file, leaving out entries that are not valid text or exceed the bounds."""
    found: Dict[str, str] = {}
    room = _MAX_METADATA_BYTES

    try:
        names = [name for name in os.listxattr(path) if name.startswith(METADATA_PREFIX)]
    except OSError:
        # Files of the kernel, sockets and broken links have none.
        return found

    for name in sorted(names)[:_MAX_METADATA]:
        try:
            value = os.getxattr(path, name).decode()
        except (OSError, UnicodeDecodeError):
            continue

        room -= len(name) + len(value)

        if room >= 0:
            found[name[len(METADATA_PREFIX) :]] = value

    return found


def kind(mode: int) -> str:
    """Returns the kind of a file: file, dir, symlink or other."""
    if stat.S_ISREG(mode):
        return "file"

    if stat.S_ISDIR(mode):
        return "dir"

    return "symlink" if stat.S_ISLNK(mode) else "other"


def _walk(folder: str, depth: int) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return

    for name in names:
        if name.startswith(PART_PREFIX):
            continue

        path = os.path.join(folder, name)
        yield path

        if depth > 1 and os.path.isdir(path) and not os.path.islink(path):
            yield from _walk(path, depth - 1)


def _open_up(folder: str) -> None:
    """Makes a folder and its subfolders accessible to their owner, so that they can be removed."""
    waiting = [folder]

    while waiting:
        path = waiting.pop()
        os.chmod(path, 0o700)
        waiting.extend(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))


# Each lookup reads a system file that never changes in a sandbox, and entries of a listing have few owners.
@functools.lru_cache(maxsize=256)
def _name_of_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=256)
def _name_of_group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
