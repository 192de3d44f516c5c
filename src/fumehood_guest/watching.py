"""Watching: tells the host what changes in a folder of the guest.

Runs in init, over inotify. A recursive watch follows folders that appear later; their number is bounded, and
a flood of changes is reported as an overflow rather than buffered without end.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any, Callable, Dict, List, Set, Tuple

from fumehood_guest.files import PART_PREFIX, absolute
from fumehood_jail import syscalls

Reply = Tuple[Any, bytes]

MAX_WATCHED_FOLDERS = 4096
# Two paths of 4 KiB each, every byte escaped to six characters, still fit into one header.
_MAX_CHANGES_A_MESSAGE = 16
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
    """The folders that are watched for the host."""

    def __init__(self, init: Any) -> None:
        self._init = init
        self._watches: Dict[int, _Watch] = {}
        self._next_id = 1

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the verbs by their names on the wire."""
        return {"watch": self.watch, "unwatch": self.unwatch}

    def watch(self, path: str, recursive: bool) -> Reply:
        """Begins to watch a folder."""
        full = absolute(path)

        if not os.path.isdir(full):
            os.stat(full)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

        number = self._next_id
        self._next_id += 1
        self._watches[number] = _Watch(self._init, number, full, recursive)
        return {"watch_id": number}, b""

    def unwatch(self, watch_id: int) -> Reply:
        """Ends a watch; ending it twice is no error."""
        watch = self._watches.pop(watch_id, None)

        if watch is not None:
            watch.close()

        return None, b""


class _Watch:
    """One watched tree and its inotify descriptor."""

    def __init__(self, init: Any, number: int, root: str, recursive: bool) -> None:
        self._init = init
        self._number = number
        self._root = root
        self._recursive = recursive
        self._folders: Dict[int, str] = {}
        self._completed: Set[int] = set()
        self._fd = syscalls.inotify_init()
        self._add(root)
        init.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stops watching."""
        self._init.remove_reader(self._fd)
        os.close(self._fd)

    def _add(self, folder: str) -> None:
        """Watches a folder, and those beneath it; no recursion, for guests can nest folders without end."""
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

    def _read(self, _events: int) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return

        changes: List[Dict[str, str]] = []
        position = 0

        while position < len(data):
            descriptor, mask, cookie, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = os.fsdecode(data[position : position + length].rstrip(b"\0"))
            position += length

            if name.startswith(PART_PREFIX):
                self._completed.add(cookie)
                continue

            for change in self._describe(descriptor, mask, name, cookie in self._completed):
                if not changes or changes[-1] != change:
                    changes.append(change)

        self._completed.clear()

        for start in range(0, len(changes), _MAX_CHANGES_A_MESSAGE):
            part = changes[start : start + _MAX_CHANGES_A_MESSAGE]
            self._init.send_event({"event": "watch", "watch_id": self._number, "changes": part})

    def _describe(self, descriptor: int, mask: int, name: str, is_upload: bool) -> List[Dict[str, str]]:
        if mask & syscalls.IN_Q_OVERFLOW:
            return [{"kind": "overflow", "name": ".", "path": self._root}]

        folder = self._folders.get(descriptor)

        if mask & syscalls.IN_IGNORED:
            self._folders.pop(descriptor, None)
            return []

        kind = next((kind for bits, kind in _KINDS if mask & bits), None)

        if folder is None or kind is None or not name:
            return []

        path = os.path.join(folder, name)
        changes = [self._change(kind, path)]

        if self._recursive and kind == "create" and mask & syscalls.IN_ISDIR:
            self._add(path)
            # What was put into the new folder before it was watched would otherwise go unseen.
            changes.extend(self._change("create", inner) for inner in _below(path))

        return [*changes, self._change("write", path)] if is_upload else changes

    def _change(self, kind: str, path: str) -> Dict[str, str]:
        return {"kind": kind, "name": os.path.relpath(path, self._root), "path": path}


def _below(folder: str) -> List[str]:
    """Lists everything beneath a folder, as far as the kernel takes the paths; no recursion here either."""
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
