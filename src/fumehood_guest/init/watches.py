"""Watching: reports changes in a folder of the guest to the host.

Runs in init, over inotify. A recursive watch follows folders that appear later; their number is bounded, and a burst of
changes is reported as an overflow rather than buffered without bound.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import termios
from typing import Any, Callable, Dict, List, Tuple

from fumehood_guest.init.files import absolute, entry
from fumehood_guest.shared.writable_files import PART_PREFIX, REPLACING_PREFIX
from fumehood_jail import syscalls

Reply = Tuple[Any, bytes]

MAX_WATCHED_FOLDERS = 4096
# Two paths of 4 KiB each, every byte escaped to six characters, still fit into one header.
_MAX_CHANGES_A_MESSAGE = 16
_MAX_MESSAGE_BYTES = 1 << 19
_READ_BYTES = 1 << 16
_MAX_COMPLETED = 1024
_EVENT = struct.Struct("iIII")

_KINDS = (
    (syscalls.IN_CREATE, "create"),
    (syscalls.IN_CLOSE_WRITE | syscalls.IN_MODIFY, "write"),
    (syscalls.IN_DELETE, "remove"),
    (syscalls.IN_MOVED_FROM, "rename"),
    (syscalls.IN_MOVED_TO, "create"),
    (syscalls.IN_ATTRIB, "chmod"),
)
_MASK = (
    syscalls.IN_CREATE
    | syscalls.IN_MODIFY
    | syscalls.IN_DELETE
    | syscalls.IN_MOVED_FROM
    | syscalls.IN_MOVED_TO
    | syscalls.IN_ATTRIB
    | syscalls.IN_ONLYDIR
)


class Watches:
    """The folders watched for the host."""

    def __init__(self, init: Any) -> None:
        self._init = init
        self._watches: Dict[int, _Watch] = {}
        self._next_id = 1

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {"watch": self.watch, "settle_watch": self.settle, "unwatch": self.unwatch}

    def watch(self, path: str, recursive: bool, entries: bool = False) -> Reply:
        """Begins to watch a folder; with `entries`, each change includes the description of its path."""
        full = absolute(path)

        if not os.path.isdir(full):
            os.stat(full)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

        number = self._next_id
        self._next_id += 1
        self._watches[number] = _Watch(self._init, number, full, recursive, entries)
        return {"watch_id": number}, b""

    def settle(self, watch_id: int) -> Reply:
        """Reports all changes from before this call; their events come before the reply."""
        watch = self._watches.get(watch_id)

        if watch is not None:
            watch.settle()

        return None, b""

    def unwatch(self, watch_id: int) -> Reply:
        """Ends a watch; a second call does nothing."""
        watch = self._watches.pop(watch_id, None)

        if watch is not None:
            watch.close()

        return None, b""


class _Watch:
    """One watched tree and its inotify descriptor."""

    def __init__(self, init: Any, number: int, root: str, recursive: bool, entries: bool) -> None:
        self._init = init
        self._number = number
        self._root = root
        self._recursive = recursive
        self._entries = entries
        self._folders: Dict[int, str] = {}
        # The change kinds of completed uploads, by the cookie that links both halves of a rename.
        self._completed: Dict[int, Tuple[str, ...]] = {}
        self._fd = syscalls.inotify_init()
        self._add(root)
        init.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stops watching."""
        self._init.remove_reader(self._fd)
        os.close(self._fd)

    def _add(self, folder: str) -> None:
        """Watches a folder, and those beneath it; without recursion, because guests can nest folders without bound."""
        waiting = [folder]

        while waiting and len(self._folders) < MAX_WATCHED_FOLDERS:
            path = waiting.pop()
            try:
                self._folders[syscalls.inotify_add_watch(self._fd, path, _MASK)] = path
                inner = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue

            if self._recursive:
                waiting.extend(inner)

    def settle(self) -> None:
        """Reads what the kernel has queued now; code that keeps changing files does not prolong it."""
        held = bytearray(4)
        fcntl.ioctl(self._fd, termios.FIONREAD, held)
        left = int.from_bytes(held, "little")

        while left > 0:
            size = self._read(0)

            if not size:
                return

            left -= size

    def _read(self, _events: int) -> int:
        """Reports the changes of one read, and returns its size in bytes."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0

        changes: List[Dict[str, Any]] = []
        position = 0

        while position < len(data):
            descriptor, mask, cookie, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = os.fsdecode(data[position : position + length].rstrip(b"\0"))
            position += length

            if name.startswith(PART_PREFIX):
                self._note_part(name, mask, cookie)
                continue

            for change in self._describe(descriptor, mask, name, self._kinds(mask, cookie)):
                if not changes or changes[-1] != change:
                    changes.append(change)

        self._send(changes)
        return len(data)

    def _note_part(self, name: str, mask: int, cookie: int) -> None:
        """Records an upload that is being completed by a rename; the next event with that cookie has its final name."""
        if mask & syscalls.IN_MOVED_FROM:
            is_new = not name.startswith(REPLACING_PREFIX)
            # A new file gets its mode before its content, as with other daemons.
            self._completed[cookie] = ("create", "chmod", "write") if is_new else ("write",)

            if len(self._completed) > _MAX_COMPLETED:
                # Moved out of the watched folders: the other half never comes.
                self._completed.pop(next(iter(self._completed)))

    def _kinds(self, mask: int, cookie: int) -> Tuple[str, ...]:
        if mask & syscalls.IN_MOVED_TO and cookie in self._completed:
            return self._completed.pop(cookie)

        return tuple(kind for bits, kind in _KINDS if mask & bits)[:1]

    def _send(self, changes: List[Dict[str, Any]]) -> None:
        """Sends changes in messages of a bounded size."""
        part: List[Dict[str, Any]] = []
        size = 0

        for change in changes:
            if self._entries:
                _add_entry(change)

            length = len(json.dumps(change))

            if part and (len(part) == _MAX_CHANGES_A_MESSAGE or size + length > _MAX_MESSAGE_BYTES):
                self._init.send_event({"event": "watch", "watch_id": self._number, "changes": part})
                part, size = [], 0

            part.append(change)
            size += length

        if part:
            self._init.send_event({"event": "watch", "watch_id": self._number, "changes": part})

    def _describe(
        self, descriptor: int, mask: int, name: str, kinds: Tuple[str, ...]
    ) -> List[Dict[str, Any]]:
        if mask & syscalls.IN_Q_OVERFLOW:
            return [{"kind": "overflow", "name": ".", "path": self._root}]

        folder = self._folders.get(descriptor)

        if mask & syscalls.IN_IGNORED:
            self._folders.pop(descriptor, None)
            return []

        if folder is None or not kinds or not name:
            return []

        path = os.path.join(folder, name)
        changes = [self._change(kind, path) for kind in kinds]

        if self._recursive and kinds[0] == "create" and mask & syscalls.IN_ISDIR:
            self._add(path)
            # Entries made in the new folder before it was watched would otherwise be missed.
            changes.extend(self._change("create", inner) for inner in _below(path))

        return changes

    def _change(self, kind: str, path: str) -> Dict[str, Any]:
        return {"kind": kind, "name": os.path.relpath(path, self._root), "path": path}


def _add_entry(change: Dict[str, Any]) -> None:
    """Adds the description of the path of a change; nothing if it is gone again."""
    try:
        change["entry"] = entry(change["path"])
    except OSError:
        return


def _below(folder: str) -> List[str]:
    """Lists all entries beneath a folder, as far as the kernel accepts the paths; without recursion."""
    found: List[str] = []
    waiting = [folder]

    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue

        found.extend(entry.path for entry in entries)
        waiting.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))

    return found
