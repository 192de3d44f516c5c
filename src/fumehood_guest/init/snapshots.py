"""Snapshots: the writable files of a sandbox at one moment, to compare with and to restore.

An unchanged file is not copied: init keeps each file open under a read lease, and when a process opens it for writing,
the kernel blocks that until init has copied the content (man 2 fcntl, "Leases"; see `lease_breaks`). A file that was
open for writing when the snapshot was taken, or that exceeds the number of leases, is copied at once. Copies are
nameless files of the sandbox's own filesystem and count as its disk. While a snapshot is taken or restored, all
processes of the sandbox are stopped, except those that wait for the host. If a content could not be kept, this is
recorded, and its snapshot cannot be restored: it must never restore a wrong file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import contextmanager
from itertools import islice
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from fumehood_guest.init.files import MAX_CHUNK_BYTES
from fumehood_guest.init.lease_breaks import LeaseBreaks
from fumehood_guest.init.restore import Restoration
from fumehood_guest.init.sigstop_freezer import SigstopFreezer
from fumehood_guest.shared import process_usage
from fumehood_guest.shared.writable_files import (
    PART_PREFIX,
    SnapshotContent,
    SnapshotEntry,
    SnapshotError,
    nameless_copy,
    open_to_read,
    walk,
)
from fumehood_jail.launch import SNAPSHOT_FILES
from fumehood_jail.mounts import WRITABLE, shown
from fumehood_wire.frames import MAX_HEADER_BYTES, encode
from fumehood_wire.messages import (
    MAX_CHANGED_FILES,
    MAX_LEFT_BEHIND,
    MAX_LEFT_BEHIND_CHARS,
    MAX_LISTED_FILES,
    MAX_TIME_NS,
)

Reply = Tuple[Any, bytes]
Found = Dict[str, List[Dict[str, Any]]]

# Each lease takes a descriptor of init; the other half is for copies.
_MAX_LEASES = SNAPSHOT_FILES // 2
# Bound on the differences in one reply; the rest of the header is short.
_MAX_CHANGES_BYTES = MAX_HEADER_BYTES - (1 << 14)
# Bound on the names in one reply.
_MAX_PAGE_CHARS = 1 << 16
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.001


class Snapshots:
    """The snapshots of this sandbox, by number.

    Args:
        freezer: Stops the processes.
        add_reader: Registers a function, to be called with the events of a descriptor whenever it is readable.
    """

    def __init__(
        self, freezer: SigstopFreezer, add_reader: Callable[[int, Callable[[int], None]], None]
    ) -> None:
        self._freezer = freezer
        self._add_reader = add_reader
        # None before the first snapshot.
        self._breaks: Optional[LeaseBreaks] = None
        self._snapshots: Dict[int, Dict[str, SnapshotEntry]] = {}
        self._next_number = 1
        # Contents under a lease, by inode: snapshots share them.
        self._leased: Dict[int, SnapshotContent] = {}
        # The inodes of these contents, by descriptor.
        self._inodes: Dict[int, int] = {}

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {
            "take_snapshot": self.take,
            "restore_snapshot": self.restore,
            "compare_snapshot": self.compare,
            "list_snapshot": self.list_taken,
            "read_snapshot": self.read_taken,
            "drop_snapshot": self.drop,
        }

    def take(self, held: Sequence[int]) -> Reply:
        """Takes a snapshot of all writable files."""
        if self._breaks is None:
            self._breaks = LeaseBreaks()
            self._add_reader(self._breaks.fd, self._copy_what_is_announced)

        lost: List[str] = []
        taken: Dict[str, SnapshotEntry] = {}
        try:
            with self._still(held):
                for path, status in walk():
                    taken[path] = self._keep(path, status, lost)
        except BaseException:
            self._release(taken)
            raise

        number = self._next_number
        self._next_number += 1
        self._snapshots[number] = taken
        files = [entry for entry in taken.values() if entry.content is not None]
        value = {
            "snapshot": number,
            "files": len(files),
            "size_bytes": sum(entry.size_bytes for entry in files),
            "left_behind": [line[:MAX_LEFT_BEHIND_CHARS] for line in lost[:MAX_LEFT_BEHIND]],
        }
        return value, b""

    def restore(self, snapshot: int, held: Sequence[int]) -> Reply:
        """Restores all writable files; refuses without any change when one of them was not kept."""
        taken = self._snapshots[snapshot]
        self.copy_what_is_opened()

        with self._still(held):
            self.copy_what_is_opened()
            restored, removed = Restoration(taken, self._is_unchanged, self._give_back).carry_out()

            for path, inode in restored.items():
                taken[path] = taken[path]._replace(inode=inode)

        return {"restored": len(restored), "removed": removed}, b""

    def compare(self, snapshot: int, later: Optional[int] = None) -> Reply:
        """Returns what was created, modified and deleted since the snapshot: until now, or until another one."""
        self.copy_what_is_opened()
        before = self._snapshots[snapshot]

        if later is not None:
            return _counted(_between(before, self._snapshots[later])), b""

        now = {path: status for path, status in walk() if not stat.S_ISDIR(status.st_mode)}
        found: Found = {"created": [], "modified": [], "deleted": []}

        for path, status in now.items():
            entry = before.get(path)

            if entry is None:
                found["created"].append({"path": shown(path), "size_bytes": status.st_size})
            elif not self._is_same(entry, status):
                found["modified"].append({"path": shown(path), "size_bytes": status.st_size})

        for path, entry in before.items():
            if path not in now and not stat.S_ISDIR(entry.mode):
                found["deleted"].append({"path": shown(path), "size_bytes": entry.size_bytes})

        return _counted(found), b""

    def taken(self, snapshot: int) -> Dict[str, SnapshotEntry]:
        """Returns the entries of a snapshot, by path."""
        return self._snapshots[snapshot]

    def list_taken(self, snapshot: int, offset: int) -> Reply:
        """Describes the entries of a snapshot, in its order, from entry number `offset` on."""
        listed: List[Dict[str, Any]] = []
        room_chars = _MAX_PAGE_CHARS

        for number, entry in enumerate(islice(self._snapshots[snapshot].values(), offset, None), offset):
            if len(listed) == MAX_LISTED_FILES or room_chars <= 0:
                return {"entries": listed, "next": number}, b""

            if entry.path in WRITABLE or os.path.basename(entry.path).startswith(PART_PREFIX):
                continue

            listed.append(
                {
                    "path": entry.path,
                    "mode": entry.mode,
                    "modified_ns": max(-MAX_TIME_NS, min(entry.modified_ns, MAX_TIME_NS)),
                    "size_bytes": entry.size_bytes,
                    "inode": entry.inode,
                    "links": entry.links,
                    "target": entry.target,
                }
            )
            # A character can take six in a frame.
            room_chars -= len(entry.path) + len(entry.target)

        return {"entries": listed, "next": None}, b""

    def read_taken(self, snapshot: int, path: str, offset: int, length: int) -> Reply:
        """Reads the content of a file at the moment of a snapshot; an empty payload is the end."""
        self.copy_what_is_opened()
        entry = self._snapshots[snapshot].get(path)

        if entry is None:
            raise SnapshotError(errno.ENOENT, "it was not there at that moment")

        content = entry.content

        if content is None:
            raise SnapshotError(errno.EINVAL, "it is no file")

        if content.fd is None:
            raise SnapshotError(errno.ENOSPC, "it was changed meanwhile, and there was no room to keep it")

        return None, os.pread(content.fd, min(length, MAX_CHUNK_BYTES), offset)

    def drop(self, snapshot: int) -> Reply:
        """Releases a snapshot."""
        self._release(self._snapshots.pop(snapshot))
        return None, b""

    def copy_what_is_opened(self) -> None:
        """Copies each content that a process is about to change, and lets that process proceed.

        Checks every lease. Called before steps that need all leases handled, and on the signal that the kernel sends
        when its queue is too full to name the lease.
        """
        self._copy_opened(list(self._inodes))

    # -- contents

    def _copy_what_is_announced(self, _events: int) -> None:
        assert self._breaks is not None, "it has called this"
        self._copy_opened(fd for fd in self._breaks.read() if fd in self._inodes)

    def _copy_opened(self, fds: Iterable[int]) -> None:
        for fd in fds:
            if fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                self._give_back(self._inodes[fd])

    def _give_back(self, inode: int) -> None:
        """Copies what later snapshots keep of a file that is about to be written to."""
        if inode in self._leased:
            self._copy_and_release(self._unlisted(inode))

    def _unlisted(self, inode: int) -> SnapshotContent:
        content = self._leased.pop(inode)
        assert content.fd is not None, "a leased content has a descriptor"
        del self._inodes[content.fd]
        return content

    def _keep(self, path: str, status: os.stat_result, lost: List[str]) -> SnapshotEntry:
        content, target = None, ""

        if stat.S_ISREG(status.st_mode):
            content = self._content(path, status)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)
        elif not stat.S_ISDIR(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            lost.append(f"{shown(path)}, which is neither a file nor a directory")

        return SnapshotEntry(
            path,
            status.st_mode,
            status.st_mtime_ns,
            status.st_size,
            status.st_ino,
            status.st_nlink,
            content,
            target,
        )

    def _content(self, path: str, status: os.stat_result) -> SnapshotContent:
        shared = self._leased.get(status.st_ino)

        if shared is not None:
            shared.users += 1
            return shared

        fd = open_to_read(path, status.st_mode)

        if len(self._leased) < _MAX_LEASES:
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                # A process has it open for writing, or this system has no leases.
                if error.errno not in (errno.EAGAIN, errno.EINVAL, errno.EACCES):
                    raise
            else:
                assert self._breaks is not None, "opened by the first snapshot"
                self._breaks.announce(fd)
                self._inodes[fd] = status.st_ino
                content = self._leased[status.st_ino] = SnapshotContent(fd, status.st_ino)
                return content

        try:
            return SnapshotContent(nameless_copy(fd))
        finally:
            os.close(fd)

    def _copy_and_release(self, content: SnapshotContent) -> None:
        """Replaces a leased content by a copy; the process that waits to write may proceed."""
        fd = content.fd
        assert fd is not None, "a leased content has a descriptor"
        try:
            content.fd = nameless_copy(fd)
        except OSError:
            content.fd = None  # no space: the snapshot cannot be restored any more
        finally:
            content.leased_inode = None
            # Closing releases the lease.
            os.close(fd)

    def _release(self, taken: Dict[str, SnapshotEntry]) -> None:
        for entry in taken.values():
            content = entry.content

            if content is None:
                continue

            content.users -= 1

            if content.users == 0 and content.fd is not None:
                if content.leased_inode is not None:
                    self._unlisted(content.leased_inode)

                os.close(content.fd)
                content.fd = None

    def _is_same(self, entry: SnapshotEntry, status: os.stat_result) -> bool:
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(status.st_mode) or entry.size_bytes != status.st_size:
            return False

        if entry.content is not None:
            return self._is_unchanged(entry, status) or (
                entry.inode == status.st_ino and entry.modified_ns == status.st_mtime_ns
            )

        return entry.modified_ns == status.st_mtime_ns

    @staticmethod
    def _is_unchanged(entry: SnapshotEntry, status: os.stat_result) -> bool:
        """Whether the path is the very same file, and has not been opened for writing since."""
        return entry.content is not None and entry.content.leased_inode == status.st_ino

    # -- stopping processes

    @contextmanager
    def _still(self, held: Sequence[int]) -> Iterator[None]:
        """Stops all processes for the block, unless all of them wait for the host anyway."""
        if self._freezer.is_on or set(process_usage.living()) <= set(held):
            yield
            return

        deadline = time.monotonic() + _STOP_SECONDS
        try:
            while not self._freezer.stop_all()[0]["stopped"]:
                # A process that waits for a lease stops only once it has it.
                self.copy_what_is_opened()

                if time.monotonic() > deadline:
                    raise SnapshotError(errno.EBUSY, "some of the sandbox's processes do not stop")

                time.sleep(_LOOK_SECONDS)

            yield
        finally:
            self._freezer.continue_all()


def _between(before: Dict[str, SnapshotEntry], after: Dict[str, SnapshotEntry]) -> Found:
    """Returns the differences between the files of two snapshots."""
    found: Found = {"created": [], "modified": [], "deleted": []}

    for path, entry in after.items():
        earlier = before.get(path)

        if stat.S_ISDIR(entry.mode):
            continue

        if earlier is None or stat.S_ISDIR(earlier.mode):
            found["created"].append({"path": shown(path), "size_bytes": entry.size_bytes})
        elif not _are_same(earlier, entry):
            found["modified"].append({"path": shown(path), "size_bytes": entry.size_bytes})

    for path, entry in before.items():
        if not stat.S_ISDIR(entry.mode) and (path not in after or stat.S_ISDIR(after[path].mode)):
            found["deleted"].append({"path": shown(path), "size_bytes": entry.size_bytes})

    return found


def _are_same(before: SnapshotEntry, after: SnapshotEntry) -> bool:
    if stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode) or before.size_bytes != after.size_bytes:
        return False

    if before.content is None or after.content is None:
        return before.target == after.target

    # One content under a lease means that nothing has opened the file for writing in between.
    return before.content is after.content or (
        before.inode == after.inode and before.modified_ns == after.modified_ns
    )


def _counted(found: Found) -> Dict[str, Any]:
    """Returns the first differences of each kind, as many as a reply takes, and how many more there are."""
    room_bytes = _MAX_CHANGES_BYTES
    counted: Found = {}

    for kind, changes in found.items():
        counted[kind] = []

        for change in changes[:MAX_CHANGED_FILES]:
            needed_bytes = len(encode(change))

            if needed_bytes > room_bytes:
                break

            room_bytes -= needed_bytes
            counted[kind].append(change)

    more = sum(len(changes) - len(counted[kind]) for kind, changes in found.items())
    return {**counted, "more": more}
