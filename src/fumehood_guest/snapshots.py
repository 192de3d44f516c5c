"""Snapshots: the writable files of a sandbox as they were at one moment, to be compared with and put back.

Runs in init. Nothing is copied as long as nothing changes: init keeps each file open under a read lease, and when
somebody opens it to write, the kernel lets that wait until init has copied the content (man 2 fcntl, "Leases").
A file that was open for writing when the snapshot was taken, or that is one too many, is copied at once. Copies
are nameless files of the sandbox's own filesystem and count as its disk. While a snapshot is taken or put back,
whatever runs in the sandbox is stopped, but for those who wait for the host anyway. A content that could not be
kept is known, and its snapshot can no longer be put back: never a wrong file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from fumehood_guest import accounting
from fumehood_guest.standstill import Standstill
from fumehood_jail.launch import SNAPSHOT_FILES
from fumehood_jail.mounts import WRITABLE
from fumehood_wire.messages import MAX_CHANGED_FILES, MAX_LEFT_BEHIND, MAX_LEFT_BEHIND_CHARS

Reply = Tuple[Any, bytes]

_CHUNK_BYTES = 1 << 20
# Each takes a descriptor of init's; the other half is for copies.
_MAX_LEASES = SNAPSHOT_FILES // 2
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.001
_ROOM = ".fumehood-"


class _Content:
    """What a file held: under a lease the file itself, later a copy; None when it could not be kept."""

    __slots__ = ("fd", "is_leased", "users")

    def __init__(self, fd: int, *, is_leased: bool) -> None:
        self.fd: Optional[int] = fd
        self.is_leased = is_leased
        self.users = 1


class _Entry(NamedTuple):
    """One file, directory or link of a snapshot."""

    path: str
    mode: int
    modified_ns: int
    size_bytes: int
    inode: int
    links: int
    content: Optional[_Content]
    target: str


class SnapshotError(OSError):
    """A snapshot cannot be taken or put back; becomes a reply."""


class Snapshots:
    """The snapshots of this sandbox, by number.

    Args:
        standstill: Stops what runs.
    """

    def __init__(self, standstill: Standstill) -> None:
        self._standstill = standstill
        self._snapshots: Dict[int, Dict[str, _Entry]] = {}
        self._next_number = 1
        # Contents under a lease, by their inode: snapshots share them.
        self._leased: Dict[int, _Content] = {}

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the verbs by their names on the wire."""
        return {
            "take_snapshot": self.take,
            "restore_snapshot": self.restore,
            "compare_snapshot": self.compare,
            "drop_snapshot": self.drop,
        }

    def take(self, held: Sequence[int]) -> Reply:
        """Keeps all writable files as they are now."""
        lost: List[str] = []
        taken: Dict[str, _Entry] = {}
        try:
            with self._still(held):
                for path, status in _walk():
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
        """Puts all writable files back as they were; refused with nothing changed when one of them was not kept."""
        taken = self._snapshots[snapshot]
        self.copy_what_is_opened()

        with self._still(held):
            self.copy_what_is_opened()
            restored, removed = _Restoration(taken, self._is_unchanged, self._give_back).carry_out()

            for path, inode in restored.items():
                taken[path] = taken[path]._replace(inode=inode)

        return {"restored": len(restored), "removed": removed}, b""

    def compare(self, snapshot: int) -> Reply:
        """Tells what was created, modified and deleted since."""
        self.copy_what_is_opened()
        before = self._snapshots[snapshot]
        now = {path: status for path, status in _walk() if not stat.S_ISDIR(status.st_mode)}
        found: Dict[str, List[Dict[str, Any]]] = {"created": [], "modified": [], "deleted": []}

        for path, status in now.items():
            entry = before.get(path)

            if entry is None:
                found["created"].append({"path": path, "size_bytes": status.st_size})
            elif not self._is_same(entry, status):
                found["modified"].append({"path": path, "size_bytes": status.st_size})

        for path, entry in before.items():
            if path not in now and not stat.S_ISDIR(entry.mode):
                found["deleted"].append({"path": path, "size_bytes": entry.size_bytes})

        more = sum(max(0, len(changes) - MAX_CHANGED_FILES) for changes in found.values())
        return {**{kind: changes[:MAX_CHANGED_FILES] for kind, changes in found.items()}, "more": more}, b""

    def drop(self, snapshot: int) -> Reply:
        """Forgets a snapshot."""
        self._release(self._snapshots.pop(snapshot))
        return None, b""

    def copy_what_is_opened(self) -> None:
        """Copies each content that somebody is about to change, and lets that go on.

        Called on the signal that the kernel sends then; anybody else who sends it causes a look and nothing more.
        """
        for inode, content in list(self._leased.items()):
            if content.fd is not None and fcntl.fcntl(content.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                del self._leased[inode]
                self._copy_and_release(content)

    # -- contents

    def _give_back(self, inode: int) -> None:
        """Copies what later snapshots keep of a file that is about to be written to."""
        content = self._leased.pop(inode, None)

        if content is not None:
            self._copy_and_release(content)

    def _keep(self, path: str, status: os.stat_result, lost: List[str]) -> _Entry:
        content, target = None, ""

        if stat.S_ISREG(status.st_mode):
            content = self._content(path, status)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)
        elif not stat.S_ISDIR(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            lost.append(f"{path}, which is neither a file nor a directory")

        return _Entry(
            path,
            status.st_mode,
            status.st_mtime_ns,
            status.st_size,
            status.st_ino,
            status.st_nlink,
            content,
            target,
        )

    def _content(self, path: str, status: os.stat_result) -> _Content:
        shared = self._leased.get(status.st_ino)

        if shared is not None:
            shared.users += 1
            return shared

        fd = _open_to_read(path, status.st_mode)

        if len(self._leased) < _MAX_LEASES:
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                # Somebody has it open to write, or this system knows no leases.
                if error.errno not in (errno.EAGAIN, errno.EINVAL, errno.EACCES):
                    raise
            else:
                content = self._leased[status.st_ino] = _Content(fd, is_leased=True)
                return content

        try:
            return _Content(_nameless_copy(fd), is_leased=False)
        finally:
            os.close(fd)

    def _copy_and_release(self, content: _Content) -> None:
        """Puts a copy in the place of the file itself; whoever waits to write may go on."""
        fd = content.fd
        assert fd is not None, "a leased content has a descriptor"
        try:
            content.fd = _nameless_copy(fd)
        except OSError:
            content.fd = None  # no room: what comes may overwrite it, and the snapshot is of no use any more
        finally:
            content.is_leased = False
            # Closing gives the lease back.
            os.close(fd)

    def _release(self, taken: Dict[str, _Entry]) -> None:
        for entry in taken.values():
            content = entry.content

            if content is None:
                continue

            content.users -= 1

            if content.users == 0 and content.fd is not None:
                if content.is_leased:
                    self._leased.pop(entry.inode, None)

                os.close(content.fd)
                content.fd = None

    def _is_same(self, entry: _Entry, status: os.stat_result) -> bool:
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(status.st_mode) or entry.size_bytes != status.st_size:
            return False

        if entry.content is not None:
            return self._is_unchanged(entry, status) or (
                entry.inode == status.st_ino and entry.modified_ns == status.st_mtime_ns
            )

        return entry.modified_ns == status.st_mtime_ns

    @staticmethod
    def _is_unchanged(entry: _Entry, status: os.stat_result) -> bool:
        """Whether what lies there is the very file, and nobody has opened it to write since."""
        return entry.inode == status.st_ino and entry.content is not None and entry.content.is_leased

    # -- standing still

    @contextmanager
    def _still(self, held: Sequence[int]) -> Iterator[None]:
        """Stops everything for a while, unless nothing runs but what waits for the host anyway."""
        if set(accounting.processes()) <= set(held) or self._standstill.is_on:
            yield
            return

        deadline = time.monotonic() + _STOP_SECONDS
        try:
            while not self._standstill.stop_all()[0]["stopped"]:
                # One that waits for a lease stops only when it has it.
                self.copy_what_is_opened()

                if time.monotonic() > deadline:
                    raise SnapshotError(errno.EBUSY, "some of the sandbox's processes do not stop")

                time.sleep(_LOOK_SECONDS)

            yield
        finally:
            self._standstill.continue_all()


class _Restoration:
    """Puts files back: first whatever can fail for want of room, then the rest.

    Args:
        taken: What there should be.
        is_unchanged: Whether a file is there as it was.
        give_back: Gives up a lease on the file of an inode; who holds one may not write to the file either.
    """

    def __init__(
        self,
        taken: Dict[str, _Entry],
        is_unchanged: Callable[[_Entry, os.stat_result], bool],
        give_back: Callable[[int], None],
    ) -> None:
        self._taken = taken
        self._is_unchanged = is_unchanged
        self._give_back = give_back
        self._now = dict(_walk())
        # Where the contents wait, by the path that they will have. Nobody sees them: everything stands still.
        self._copies: Dict[str, str] = {}
        self._rooms: List[str] = []

    def carry_out(self) -> Tuple[Dict[str, int], int]:
        """Returns the new inodes of the files that were written, and how many things were removed."""
        try:
            self._copy_contents()
            removed = self._remove_what_is_new()
            self._make_the_rest()
            inodes = self._place_copies()
            self._set_directory_times()
        finally:
            for room in self._rooms:
                shutil.rmtree(room, ignore_errors=True)

        return inodes, removed

    def _copy_contents(self) -> None:
        rooms = {place: tempfile.mkdtemp(prefix=_ROOM, dir=place) for place in WRITABLE}
        self._rooms.extend(rooms.values())

        for path, entry in self._taken.items():
            status = self._now.get(path)

            if entry.content is None or (status is not None and self._is_unchanged(entry, status)):
                continue

            if entry.content.fd is None:
                raise SnapshotError(errno.ENOSPC, f"there was no room to keep the content of {path}")

            # A file can be moved within one mount only.
            root = next(place for place in WRITABLE if path.startswith(f"{place}/"))
            self._copies[path] = copy = f"{rooms[root]}/{len(self._copies)}"
            target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _copy_content(entry.content.fd, target)
                _set_marks(target, entry)
            finally:
                os.close(target)

    def _remove_what_is_new(self) -> int:
        removed = 0

        # The longest first: a directory is empty when its turn comes.
        for path in sorted(self._now, key=len, reverse=True):
            entry = self._taken.get(path)
            mode = self._now[path].st_mode

            if entry is not None and stat.S_IFMT(entry.mode) == stat.S_IFMT(mode):
                continue

            _make_parent_writable(path)

            if stat.S_ISDIR(mode):
                os.rmdir(path)
            else:
                os.unlink(path)

            del self._now[path]
            removed += 1

        return removed

    def _make_the_rest(self) -> None:
        for path, entry in self._taken.items():
            is_there = path in self._now

            if stat.S_ISDIR(entry.mode) and not is_there:
                os.mkdir(path)
            elif stat.S_ISFIFO(entry.mode) and not is_there:
                os.mkfifo(path)
            elif stat.S_ISLNK(entry.mode) and not (is_there and os.readlink(path) == entry.target):
                if is_there:
                    os.unlink(path)

                os.symlink(entry.target, path)

            if not stat.S_ISLNK(entry.mode) and path not in self._copies:
                _set_mode(path, entry.mode | (0o700 if stat.S_ISDIR(entry.mode) else 0))

    def _place_copies(self) -> Dict[str, int]:
        inodes: Dict[str, int] = {}
        linked: Dict[int, str] = {}

        for path, copy in self._copies.items():
            entry = self._taken[path]
            first = linked.get(entry.inode)

            if self._is_overwritten(path, entry, copy):
                continue

            if first is not None:
                os.unlink(copy)
                os.link(first, copy)

            os.replace(copy, path)
            inodes[path] = os.lstat(path).st_ino

            if entry.links > 1:
                linked[entry.inode] = path

        return inodes

    def _is_overwritten(self, path: str, entry: _Entry, copy: str) -> bool:
        """Writes the content into the file itself if that is still there: SQLite and others know it by its number.

        False where that cannot be done, for want of room as well; then the copy takes the file's place.
        """
        status = self._now.get(path)

        if status is None or status.st_ino != entry.inode:
            return False

        self._give_back(entry.inode)
        try:
            # Without waiting: nobody but us would give back what this waits for.
            target = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False

        source = _open_to_read(copy, entry.mode)
        try:
            os.ftruncate(target, 0)
            _copy_content(source, target)
            _set_marks(target, entry)
        except OSError:
            return False
        finally:
            os.close(source)
            os.close(target)

        return True

    def _set_directory_times(self) -> None:
        for path in sorted(self._taken, key=len, reverse=True):
            entry = self._taken[path]

            if stat.S_ISDIR(entry.mode):
                _set_mode(path, entry.mode)
                os.utime(path, ns=(entry.modified_ns, entry.modified_ns))


def _walk() -> Iterator[Tuple[str, os.stat_result]]:
    """Yields what lies below the writable places, each directory before what is in it."""
    waiting = list(WRITABLE)
    opened: List[Tuple[str, int]] = []
    try:
        while waiting:
            directory = waiting.pop()
            try:
                entries = list(os.scandir(directory))
            except PermissionError:
                # Its owner has forbidden it to himself; the owner is us.
                opened.append((directory, os.lstat(directory).st_mode))
                os.chmod(directory, 0o700)
                entries = list(os.scandir(directory))

            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield entry.path, status

                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
    finally:
        for directory, mode in reversed(opened):
            os.chmod(directory, stat.S_IMODE(mode))


def _open_to_read(path: str, mode: int) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except BlockingIOError:
        raise SnapshotError(errno.EAGAIN, f"{path} is leased by a process of the sandbox") from None
    except PermissionError:
        # Its owner has forbidden it to himself; the owner is us.
        os.chmod(path, 0o600)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, stat.S_IMODE(mode))


def _nameless_copy(source: int, place: str = "/tmp") -> int:  # noqa: S108 - the sandbox's own
    """Copies what is written of a file, and leaves its holes; the copy has no name."""
    target = os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        _copy_content(source, target)
    except BaseException:
        os.close(target)
        raise

    return target


def _copy_content(source: int, target: int) -> None:
    os.ftruncate(target, os.fstat(source).st_size)
    position = 0

    while True:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError:
            return

        length = os.lseek(source, position, os.SEEK_HOLE) - position
        os.lseek(target, position, os.SEEK_SET)
        sent = os.sendfile(target, source, position, min(length, _CHUNK_BYTES))

        if sent == 0:
            return

        position += sent


def _set_marks(fd: int, entry: _Entry) -> None:
    os.fchmod(fd, stat.S_IMODE(entry.mode))
    os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))


def _set_mode(path: str, mode: int) -> None:
    if stat.S_IMODE(os.lstat(path).st_mode) != stat.S_IMODE(mode):
        os.chmod(path, stat.S_IMODE(mode))


def _make_parent_writable(path: str) -> None:
    parent = os.path.dirname(path)

    if parent not in WRITABLE:
        _set_mode(parent, os.lstat(parent).st_mode | 0o700)
