"""Open resources: what a forked process shares with its parent: open files and shared memory.

Runs in a checkpoint, which releases them at once, and in a context made from it, which reopens them. A file is reopened
by its path, at the same offset, after init has restored the files; so neither reading nor writing in one process
affects the other. Pipes and sockets, which have a peer, and kernel objects (event counters, pollers) cannot be carried
over: they are listed, and their descriptors are dead afterwards. It must never change a file's content or touch the
user's objects.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import stat
from typing import Iterable, List, NamedTuple, Optional, Set, Tuple

from fumehood_guest.shared.writable_files import written_from
from fumehood_jail import syscalls
from fumehood_jail.mounts import WRITABLE

_DELETED = " (deleted)"
_ACCESS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK
# Bound on copies of content without a path: deleted temporary files, anonymous shared memory.
_MAX_COPY_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
# Devices with a peer: /dev/ptmx and the like, and their other ends (devices.txt of Linux).
_TERMINALS = frozenset((5, *range(136, 144)))
# PROT_NONE of mman.h.
_NO_ACCESS = 0


class _File(NamedTuple):
    """A regular file or a directory that was open."""

    fd: int
    path: str
    flags: int
    offset: int
    inheritable: bool
    # A copy of the content of a file without a path.
    copy: Optional[int]


class _Region(NamedTuple):
    """Memory shared with other processes."""

    start: int
    length: int
    protection: int
    offset: int
    # None: it has no path, and its content was copied.
    path: Optional[str]


class OpenResources:
    """The open resources of a process, closed in `release` and reopened in `resume`.

    Args:
        own_fds: Descriptors that do not belong to user code.
    """

    def __init__(self, own_fds: Iterable[int]) -> None:
        self._own: Set[int] = set(own_fds)
        self._files: List[_File] = []
        self._regions: List[_Region] = []
        self._room = _MAX_COPY_BYTES
        self._nowhere: Optional[int] = None
        # Messages: what could not be kept.
        self.lost: List[str] = []

    # -- in the checkpoint

    def release(self) -> None:
        """Records and closes everything; afterwards no action of this process is visible to another."""
        self._release_memory()

        for name in os.listdir("/proc/self/fd"):
            fd = int(name)

            if fd not in self._own:
                try:
                    status = os.fstat(fd)
                except OSError as error:
                    # The descriptor of the listing itself is closed. Any other that could not be examined would stay
                    # shared.
                    if error.errno != errno.EBADF:
                        raise
                else:
                    self._release_descriptor(fd, status)

    def _release_descriptor(self, fd: int, status: os.stat_result) -> None:
        link = os.readlink(f"/proc/self/fd/{fd}")

        # Objects without a path, such as namespaces, are regular files by their mode too.
        if link.startswith("/") and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            self._release_file(fd, link, status)
        elif not stat.S_ISCHR(status.st_mode) or os.major(status.st_rdev) in _TERMINALS:
            self.lost.append(f"descriptor {fd}: {_kind(link, status.st_mode)}")
            self._lead_nowhere(fd)

    def _release_file(self, fd: int, link: str, status: os.stat_result) -> None:
        copy = None

        if _is_nameless(link, status.st_ino):
            copy = self._own_copy(fd, status)

            if copy is None:
                self.lost.append(f"descriptor {fd}: a deleted file of {status.st_size:,} bytes")
                self._lead_nowhere(fd)
                return

        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & _ACCESS
        offset = os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else 0
        self._files.append(_File(fd, link, flags, offset, os.get_inheritable(fd), copy))
        # A file that is open for writing could not be leased.
        self._replace(fd, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), os.get_inheritable(fd))

    def _own_copy(self, fd: int, status: os.stat_result) -> Optional[int]:
        if not stat.S_ISREG(status.st_mode) or status.st_blocks * 512 > self._room:
            return None

        try:
            # A descriptor that is open for writing only cannot be read.
            source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

        copy = os.memfd_create("fumehood-file")
        self._own.add(copy)
        try:
            os.ftruncate(copy, status.st_size)
            self._room -= _copy_content(source, copy)
        finally:
            os.close(source)

        return copy

    def _release_memory(self) -> None:
        for start, length, protection, offset, path in _shared_regions():
            if path is None and length > self._room:
                self.lost.append(f"{length:,} bytes of memory that is shared with other processes")
                continue

            region = _Region(start, length, protection, offset, path)
            self._regions.append(region)

            if path is None:
                self._room -= length
                _make_own(region)
            else:
                # Reserves the address range, and unmaps the file.
                syscalls.map_over(
                    start,
                    length,
                    _NO_ACCESS,
                    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                )

    # -- in the context made from it

    def resume(self) -> None:
        """Reopens everything, privately for this process."""
        for region in self._regions:
            try:
                _take_up(region)
            except OSError as error:
                self.lost.append(f"memory mapped from {region.path}: {error.strerror}")

        for file in self._files:
            try:
                self._reopen(file)
            except OSError as error:
                self.lost.append(f"{file.path}, open as descriptor {file.fd}: {error.strerror}")
                self._lead_nowhere(file.fd)

        for fd in [self._nowhere, *(file.copy for file in self._files)]:
            if fd is not None:
                os.close(fd)

    def _reopen(self, file: _File) -> None:
        if file.copy is None:
            fd = os.open(file.path, file.flags | os.O_CLOEXEC)
        else:
            # A private copy: other contexts may be made from the same checkpoint.
            own = os.memfd_create("fumehood-file")
            os.ftruncate(own, os.fstat(file.copy).st_size)
            _copy_content(file.copy, own)
            fd = os.open(f"/proc/self/fd/{own}", file.flags | os.O_CLOEXEC)
            os.close(own)

        if file.offset:
            os.lseek(fd, file.offset, os.SEEK_SET)

        self._replace(file.fd, fd, file.inheritable)

    # -- inside

    def _lead_nowhere(self, fd: int) -> None:
        """Makes reads from a descriptor return the end of file, and writes fail with EPIPE."""
        if self._nowhere is None:
            near, far = socket.socketpair()
            far.close()
            self._nowhere = near.detach()
            self._own.add(self._nowhere)

        os.dup2(self._nowhere, fd, inheritable=os.get_inheritable(fd))

    @staticmethod
    def _replace(fd: int, by: int, inheritable: bool) -> None:
        os.dup2(by, fd, inheritable=inheritable)
        os.close(by)


def _is_nameless(link: str, inode: int) -> bool:
    """Whether a file has no path any more; a real name may end like the kernel's mark for deleted files."""
    if link.startswith("/memfd:"):
        return True

    return link.endswith(_DELETED) and not _leads_to(link, inode)


def _leads_to(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False


def _kind(link: str, mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"

    if stat.S_ISSOCK(mode):
        return "a socket"

    return link.replace("anon_inode:", "").strip("[]") or "unknown"


def _copy_content(source: int, target: int) -> int:
    """Copies the written parts of a file, and keeps its holes; returns the bytes copied."""
    copied = position = 0

    while True:
        written = written_from(source, position)

        if written is None:
            return copied

        position, length = written
        data = os.pread(source, min(length, _CHUNK_BYTES), position)

        if not data:
            return copied

        count = os.pwrite(target, data, position)
        position += count
        copied += count


def _shared_regions() -> List[Tuple[int, int, int, int, Optional[str]]]:
    """Lists writable shared memory: start, length, protection, offset, and path if it has one."""
    regions = []

    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()

    for line in lines:
        fields = line.split(None, 5)

        if fields[1][3] != "s":
            continue

        inode = int(fields[4])
        path: Optional[str] = fields[5] if len(fields) > 5 else ""
        start, end = (int(part, 16) for part in fields[0].split("-"))
        protection = (mmap.PROT_READ if fields[1][0] == "r" else 0) | (
            mmap.PROT_WRITE if fields[1][1] == "w" else 0
        )

        # The kernel escapes newlines in names, and nothing else.
        if path and not _leads_to(path, inode):
            path = path.replace("\\012", "\n")

        if path and path.startswith("/") and path != "/dev/zero" and not _is_nameless(path, inode):
            if not path.startswith(tuple(f"{place}/" for place in (*WRITABLE, "/tmp"))):  # noqa: S108
                continue  # of the system, and so never changed
        else:
            path = None

        regions.append((start, end - start, protection, int(fields[2], 16), path))

    return regions


def _make_own(region: _Region) -> None:
    """Replaces shared memory by a private copy."""
    content = syscalls.read_memory(region.start, region.length) if region.protection & mmap.PROT_READ else b""
    syscalls.map_over(
        region.start,
        region.length,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_SHARED | mmap.MAP_ANONYMOUS,
    )
    syscalls.write_memory(region.start, content)


def _take_up(region: _Region) -> None:
    if region.path is None:
        _make_own(region)
        return

    writes = region.protection & mmap.PROT_WRITE
    fd = os.open(region.path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        syscalls.map_over(region.start, region.length, region.protection, mmap.MAP_SHARED, fd, region.offset)
    finally:
        os.close(fd)
