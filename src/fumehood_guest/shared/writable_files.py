"""Saved files: what a snapshot records of each file, and how init walks, reads and copies the writable files.

Runs in init. Every path was made by the guest, which is never trusted: links are never followed, nothing blocks, and
there is no recursion. A file or directory whose mode denies its owner access is made accessible for a moment, because
that owner is us. It does not know when snapshots are taken, and must never write to a file of the guest.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Iterator, List, NamedTuple, Optional, Tuple

from fumehood_jail.mounts import WRITABLE

# Names of files that are not complete yet; lists and watches leave them out.
PART_PREFIX = ".fumehood-part-"
# Names of those that replace an existing file: watches report a write, not a creation.
REPLACING_PREFIX = f"{PART_PREFIX}over-"
_CHUNK_BYTES = 1 << 20
# Errors of filesystems that do not offer a call, or not for this file.
_NO_HOLES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
# What the owner needs to list a directory and read its entries.
_TO_LOOK = stat.S_IRUSR | stat.S_IXUSR


class SnapshotContent:
    """The content of a file in a snapshot: the file itself while it is under a lease, and a copy afterwards.

    Args:
        fd: A descriptor of it; None later, when the content could not be kept.
        leased_inode: The inode of the file itself, while that is under a lease.
    """

    __slots__ = ("fd", "leased_inode", "users")

    def __init__(self, fd: int, leased_inode: Optional[int] = None) -> None:
        self.fd: Optional[int] = fd
        self.leased_inode = leased_inode
        self.users = 1


class SnapshotEntry(NamedTuple):
    """One file, directory or link of a snapshot."""

    path: str
    mode: int
    modified_ns: int
    size_bytes: int
    inode: int
    links: int
    content: Optional[SnapshotContent]
    target: str


class SnapshotError(OSError):
    """A snapshot cannot be taken or restored; sent as a reply."""


def walk() -> Iterator[Tuple[str, os.stat_result]]:
    """Yields all entries below the writable folders, each directory before its content."""
    waiting = list(WRITABLE)
    opened: List[Tuple[str, int]] = []
    yield from [(place, os.lstat(place)) for place in WRITABLE]
    try:
        while waiting:
            directory = waiting.pop()
            mode = os.lstat(directory).st_mode

            if mode & _TO_LOOK != _TO_LOOK:
                # The mode denies its owner access; that owner is us.
                opened.append((directory, mode))
                os.chmod(directory, 0o700)

            for entry in list(os.scandir(directory)):
                status = entry.stat(follow_symlinks=False)
                yield entry.path, status

                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
    finally:
        for directory, mode in reversed(opened):
            os.chmod(directory, stat.S_IMODE(mode))


def empty_writable() -> None:
    """Removes everything below the writable places."""
    found = [(path, status.st_mode) for path, status in walk() if path not in WRITABLE]

    # Longest paths first, so that a directory is empty when it is removed.
    for path, mode in sorted(found, key=lambda one: len(one[0]), reverse=True):
        set_mode(os.path.dirname(path), 0o700)

        if stat.S_ISDIR(mode):
            os.rmdir(path)
        else:
            os.unlink(path)


def open_to_read(path: str, mode: int) -> int:
    """Opens a file of this mode without blocking; raises if user code holds a lease on it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except BlockingIOError:
        raise SnapshotError(errno.EAGAIN, f"{path} is leased by a process of the sandbox") from None
    except PermissionError:
        # The mode denies its owner access; that owner is us.
        os.chmod(path, 0o600)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, stat.S_IMODE(mode))


def nameless_copy(source: int, place: str = "/tmp") -> int:  # noqa: S108 - the sandbox's own
    """Copies the written parts of a file, and keeps its holes; the copy has no name."""
    target = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        copy_content(source, target)
    except BaseException:
        os.close(target)
        raise

    return target


def copy_content(source: int, target: int) -> None:
    """Copies the content of a file into an empty one, holes included."""
    os.ftruncate(target, os.fstat(source).st_size)
    position = 0

    while True:
        written = written_from(source, position)

        if written is None:
            return

        position, length = written
        os.lseek(target, position, os.SEEK_SET)
        copied = _copy_part(source, target, min(length, _CHUNK_BYTES), position)

        if copied == 0:
            return

        position += copied


def written_from(fd: int, position: int) -> Optional[Tuple[int, int]]:
    """Returns start and length of the next written part of a file from `position` on; None at the end.

    Where a filesystem cannot report holes, the whole rest of the file counts as written.

    Raises:
        OSError: The file cannot be read; the rest must not be taken for a hole.
    """
    try:
        start = os.lseek(fd, position, os.SEEK_DATA)
        return start, os.lseek(fd, start, os.SEEK_HOLE) - start
    except OSError as error:
        # The kernel's errno for the end.
        if error.errno == errno.ENXIO:
            return None

        if error.errno not in _NO_HOLES:
            raise

    left = os.fstat(fd).st_size - position
    return (position, left) if left > 0 else None


def _copy_part(source: int, target: int, byte_count: int, position: int) -> int:
    """Copies at most `byte_count` bytes to the position of `target`; returns how many, 0 at the end of `source`."""
    try:
        # Some filesystems return 0 in the middle of a file.
        if copied := os.copy_file_range(source, target, byte_count, position):
            return copied
    except OSError as error:
        # Another filesystem, such as that of the parent sandbox, or not supported here.
        if error.errno not in (errno.EXDEV, *_NO_HOLES):
            raise

    data = memoryview(os.pread(source, byte_count, position))
    written = 0

    while written < len(data):
        written += os.write(target, data[written:])

    return written


def set_mode(path: str, mode: int) -> None:
    """Sets the permissions of a path that is not a link, unless it has them."""
    if stat.S_IMODE(os.lstat(path).st_mode) != stat.S_IMODE(mode):
        os.chmod(path, stat.S_IMODE(mode))
