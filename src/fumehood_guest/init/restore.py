"""Restoring: sets the writable files of a sandbox back to the state of a snapshot.

Runs in init, while everything else in the sandbox is stopped. Steps that can fail for lack of space come first, and are
undone on failure. A file that still exists is overwritten in place, for processes that have it open; the others are
moved into place. It must never follow a link of the guest.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from typing import Callable, Dict, Iterable, List, Tuple

from fumehood_guest.shared.writable_files import (
    PART_PREFIX,
    SnapshotEntry,
    SnapshotError,
    copy_content,
    open_to_read,
    set_mode,
    walk,
)
from fumehood_jail.mounts import WRITABLE

# Where contents wait to be moved into place. Watches do not report it, as with the parts of an upload.
_ROOM = f"{PART_PREFIX}room-"


class Restoration:
    """Restores files: first the steps that can fail for lack of space, then the rest.

    Args:
        taken: The entries of the snapshot.
        is_unchanged: Returns whether a file still is as in the snapshot.
        give_back: Releases the lease on the file of an inode, which blocks writes of its holder too.
    """

    def __init__(
        self,
        taken: Dict[str, SnapshotEntry],
        is_unchanged: Callable[[SnapshotEntry, os.stat_result], bool],
        give_back: Callable[[int], None],
    ) -> None:
        self._taken = taken
        self._is_unchanged = is_unchanged
        self._give_back = give_back
        self._now = dict(walk())
        # The prepared contents, by their final path. They are invisible, because all processes are stopped.
        self._copies: Dict[str, str] = {}
        self._rooms: List[str] = []
        # Files to overwrite directly, when there is no space for a prepared copy.
        self._in_place: List[str] = []

    def carry_out(self) -> Tuple[Dict[str, int], int]:
        """Restores files of the snapshot; returns the inodes of written paths, and how many entries were removed."""
        self._prepare()
        try:
            removed = self._remove_what_is_new()
            self._write_in_place()
            self._make_the_rest()
            inodes = self._place_copies()
        finally:
            self._remove_rooms(self._taken[place].mode for place in WRITABLE)

        self._set_directory_times()
        return inodes, removed

    def _prepare(self) -> None:
        try:
            self._copy_contents()
        except BaseException as error:
            self._remove_rooms(self._now[place].st_mode for place in WRITABLE)

            if self._in_place or not isinstance(error, OSError) or error.errno != errno.ENOSPC:
                raise

            # Users often roll back because the disk is full: most files then need no extra space.
            self._in_place = [path for path, entry in self._taken.items() if self._fits_in_place(path, entry)]

            if not self._in_place:
                raise

            self._copies = {}
            self._prepare()

    def _fits_in_place(self, path: str, entry: SnapshotEntry) -> bool:
        """Whether the same file still exists, occupies as much space, and can be written to."""
        status = self._now.get(path)

        if (
            status is None
            or entry.content is None
            or entry.content.fd is None
            or status.st_ino != entry.inode
            or not stat.S_ISREG(status.st_mode)
            or self._is_unchanged(entry, status)
            or status.st_blocks < os.fstat(entry.content.fd).st_blocks
        ):
            return False

        self._give_back(entry.inode)
        try:
            os.close(_open_to_write(path))
        except OSError:
            return False

        return True

    def _write_in_place(self) -> None:
        for path in self._in_place:
            content = self._taken[path].content
            assert content is not None, "what fits has a content"
            assert content.fd is not None, "what fits has a content"
            target = _open_to_write(path)
            try:
                os.ftruncate(target, 0)
                copy_content(content.fd, target)
                _set_marks(target, self._taken[path])
            finally:
                os.close(target)

    def _remove_rooms(self, modes: Iterable[int]) -> None:
        for room in self._rooms:
            shutil.rmtree(room, ignore_errors=True)

        self._rooms = []

        for place, mode in zip(WRITABLE, modes):  # noqa: B905 - guests run on Python 3.9 too
            set_mode(place, mode)

    def _copy_contents(self) -> None:
        rooms = {}
        in_place = frozenset(self._in_place)

        for place in WRITABLE:
            set_mode(place, self._now[place].st_mode | 0o700)
            rooms[place] = tempfile.mkdtemp(prefix=_ROOM, dir=place)
            self._rooms.append(rooms[place])

        for path, entry in self._taken.items():
            status = self._now.get(path)

            if entry.content is None or path in in_place:
                continue

            if status is not None and self._is_unchanged(entry, status):
                continue

            if entry.content.fd is None:
                raise SnapshotError(errno.ENOSPC, f"there was no room to keep the content of {path}")

            # A file can be renamed within one mount only.
            root = next(place for place in WRITABLE if path.startswith(f"{place}/"))
            self._copies[path] = copy = f"{rooms[root]}/{len(self._copies)}"
            target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                copy_content(entry.content.fd, target)
                _set_marks(target, entry)
            finally:
                os.close(target)

    def _remove_what_is_new(self) -> int:
        removed = 0

        # Longest paths first, so that a directory is empty when it is removed.
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

            # For example a socket's file, which is useless without its listener.
            if not is_there and path not in self._copies and not _can_be_made(entry.mode):
                continue

            if stat.S_ISDIR(entry.mode) and not is_there:
                os.mkdir(path)
            elif stat.S_ISFIFO(entry.mode) and not is_there:
                os.mkfifo(path)
            elif stat.S_ISLNK(entry.mode) and not (is_there and os.readlink(path) == entry.target):
                if is_there:
                    os.unlink(path)

                os.symlink(entry.target, path)

            if not stat.S_ISLNK(entry.mode) and path not in self._copies:
                set_mode(path, entry.mode | (0o700 if stat.S_ISDIR(entry.mode) else 0))

            if (
                stat.S_ISREG(entry.mode)
                and path not in self._copies
                and self._now[path].st_mtime_ns != entry.modified_ns
            ):
                os.utime(path, ns=(entry.modified_ns, entry.modified_ns))

    def _place_copies(self) -> Dict[str, int]:
        inodes: Dict[str, int] = {}
        overwritten = {
            path for path, copy in self._copies.items() if self._is_overwritten(path, self._taken[path], copy)
        }
        # The hard links of a file that exist already: further links are made to one of these.
        linked = {
            entry.inode: path
            for path, entry in self._taken.items()
            if entry.links > 1 and entry.content is not None and path not in self._copies
        }
        linked.update((self._taken[path].inode, path) for path in overwritten)

        for path, copy in self._copies.items():
            if path in overwritten:
                continue

            entry = self._taken[path]
            first = linked.setdefault(entry.inode, path)

            if first != path:
                os.unlink(copy)
                os.link(first, copy)

            os.replace(copy, path)
            inodes[path] = os.lstat(path).st_ino

        return inodes

    def _is_overwritten(self, path: str, entry: SnapshotEntry, copy: str) -> bool:
        """Writes the content into the existing file: SQLite and other programs identify it by its inode.

        Returns False if that is impossible, even for lack of space; then the copy replaces the file.
        """
        status = self._now.get(path)

        if status is None or status.st_ino != entry.inode:
            return False

        self._give_back(entry.inode)
        try:
            target = _open_to_write(path)
        except OSError:
            return False

        source = open_to_read(copy, entry.mode)
        try:
            os.ftruncate(target, 0)
            copy_content(source, target)
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
                set_mode(path, entry.mode)
                os.utime(path, ns=(entry.modified_ns, entry.modified_ns))


def _open_to_write(path: str) -> int:
    # Non-blocking: this process itself would have to release the lease that it would wait for.
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _set_marks(fd: int, entry: SnapshotEntry) -> None:
    os.fchmod(fd, stat.S_IMODE(entry.mode))
    os.utime(fd, ns=(entry.modified_ns, entry.modified_ns))


def _can_be_made(mode: int) -> bool:
    return any(is_kind(mode) for is_kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISFIFO, stat.S_ISLNK))


def _make_parent_writable(path: str) -> None:
    parent = os.path.dirname(path)

    if parent not in WRITABLE:
        set_mode(parent, os.lstat(parent).st_mode | 0o700)
