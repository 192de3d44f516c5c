"""Looks into an image: its user, its Pythons and shells, and the folders that sandboxes may write.

Runs in an image jail (`image.jail`) whose root is the image, so that every link leads to the image; no program of the
image runs. Copies the working directory and the volumes, within bounds, into a folder that the host gives it.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

_MOST_TEXT = 1 << 20
_SHELLS = ("/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh")
_CHUNK_BYTES = 1 << 20
# The bound on all copies together, large files included; those are copied once for all sandboxes.
_MAX_WHOLE_BYTES = 1 << 30


def survey(order: Dict[str, Any], target: Optional[int]) -> None:
    """Carries out an order of the host and writes the answer to standard output.

    Args:
        order: `user` (as an image names it), `folders` of programs, `pythons` (names to look for), `writable` (for each
            folder its `path`, listed after its parents, the `name` of its copy, and whether it `is_made` if it is
            missing), `max_entries` and `max_bytes` of all copies; or `is_folder`, a path.
        target: A descriptor of the folder for the copies; None for none.
    """
    user = find_user(order["user"])
    answer = {
        "user": user,
        "pythons": _programs(order["folders"], order["pythons"]),
        "shell": next((path for path in _SHELLS if os.access(path, os.X_OK)), ""),
        "is_debian": os.path.exists("/etc/debian_version"),
        "writable": {},
    }

    if "is_folder" in order:
        answer["is_folder"] = os.path.isdir(order["is_folder"])

    if target is not None:
        answer["writable"] = _Copies(target, order["max_entries"], order["max_bytes"]).make(order["writable"])

    os.write(1, json.dumps(answer).encode("utf-8", "replace"))


def find_user(text: str) -> Dict[str, Any]:
    """Returns user id, group id, supplementary groups, name and home of the user that a `USER` instruction names."""
    wanted, _, group = text.partition(":")
    users = [line.split(":") for line in _lines("/etc/passwd")]
    groups = [line.split(":") for line in _lines("/etc/group")]
    found = next(
        (
            one
            for one in users
            if len(one) > 6 and one[2].isdigit() and one[3].isdigit() and (wanted or "0") in (one[0], one[2])
        ),
        None,
    )

    if found is None and wanted and not wanted.isdigit():
        return {"unknown": wanted}

    uid = int(found[2]) if found else int(wanted or 0)
    name = found[0] if found else ("root" if uid == 0 else "user")
    gid = int(found[3]) if found else 0
    more = [int(one[2]) for one in groups if len(one) > 3 and name in one[3].split(",") and one[2].isdigit()]

    if group:
        known = next(
            (one for one in groups if len(one) > 2 and one[2].isdigit() and group in (one[0], one[2])), None
        )

        if known is None and not group.isdigit():
            return {"unknown": group}

        gid, more = (int(known[2]) if known else int(group)), []

    return {"uid": uid, "gid": gid, "groups": more[:64], "name": name, "home": found[5] if found else "/"}


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_TEXT).splitlines()
    except OSError:
        return []


def _programs(folders: List[str], names: List[str]) -> List[str]:
    """Returns the paths of programs in the order of the search, each file once."""
    found: Dict[str, str] = {}

    for name in names:
        for folder in folders:
            path = os.path.join(folder, name)

            if os.path.isfile(path) and os.access(path, os.X_OK):
                found.setdefault(os.path.realpath(path), path)

    return list(found.values())


class _Copies:
    """The copies of folders, with bounds for all of them.

    Args:
        target: The folder for the copies.
        max_entries: How many entries all copies may have together.
        max_bytes: Most bytes of those files that each sandbox copies.
    """

    def __init__(self, target: int, max_entries: int, max_bytes: int) -> None:
        self._target = target
        self._left_entries = max_entries
        self._left_bytes = max_bytes
        self._left_whole_bytes = _MAX_WHOLE_BYTES
        # The names of the copies, by path.
        self._names: Dict[str, str] = {}

    def make(self, folders: List[Dict[str, Any]]) -> Dict[str, str]:
        """Copies the folders.

        Returns for each `copied`, `missing`, `large` (beyond the bounds) or `inside` (of another one).
        """
        return {one["path"]: self._copy(one["path"], one["name"], one["is_made"]) for one in folders}

    def _copy(self, path: str, name: str, is_made: bool) -> str:
        outer = next((one for one in self._names if path.startswith(f"{one}/")), None)

        if outer is not None:
            os.close(self._open_copy(f"{self._names[outer]}{path[len(outer) :]}"))
            return "inside"

        try:
            source = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            if not is_made:
                return "missing"

            os.close(self._open_copy(name))
            self._names[path] = name
            return "copied"

        if not self._fits(source):
            os.close(source)
            return "large"

        pair = (source, self._open_copy(name))
        _copy_folder(*pair)
        _close(pair)
        self._names[path] = name
        return "copied"

    def _open_copy(self, name: str) -> int:
        """Opens the folder that a folder is copied into, and makes it if it is missing; "." is the home directory."""
        folder = os.dup(self._target)

        for part in name.split("/") if name != "." else ():
            try:
                os.mkdir(part, 0o755, dir_fd=folder)
            except FileExistsError:
                # An outer folder of another copy, or what the outer copy has.
                pass

            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner

        return folder

    def _fits(self, source: int) -> bool:
        """Tells whether a folder is within the bounds, and counts it if it is."""
        count, size, whole_size = 0, 0, 0
        waiting = [os.dup(source)]

        while waiting:
            folder = waiting.pop()

            for name in os.listdir(folder):
                info = os.lstat(name, dir_fd=folder)
                count += 1
                whole_size += info.st_size if stat.S_ISREG(info.st_mode) else 0
                # Large files are linked, and not copied into each sandbox.
                size += info.st_size if stat.S_ISREG(info.st_mode) and info.st_size <= 1 << 20 else 0

                if stat.S_ISDIR(info.st_mode):
                    waiting.append(_open(name, os.O_DIRECTORY, folder))

                is_large = size > self._left_bytes or whole_size > self._left_whole_bytes

                if count > self._left_entries or is_large or len(waiting) > self._left_entries:
                    for fd in (*waiting, folder):
                        os.close(fd)

                    return False

            os.close(folder)

        self._left_entries -= count
        self._left_bytes -= size
        self._left_whole_bytes -= whole_size
        return True


def _copy_folder(source: int, target: int) -> None:
    for name in os.listdir(source):
        mode = os.lstat(name, dir_fd=source).st_mode

        if stat.S_ISDIR(mode):
            os.mkdir(name, 0o755, dir_fd=target)
            pair = (_open(name, os.O_DIRECTORY, source), _open(name, os.O_DIRECTORY, target))
            _copy_folder(*pair)
            _close(pair)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISREG(mode):
            _copy_file(name, mode, source, target)


def _copy_file(name: str, mode: int, source: int, target: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    pair = (_open(name, 0, source), os.open(name, flags, 0o755 if mode & 0o100 else 0o644, dir_fd=target))
    try:
        while True:
            data = os.read(pair[0], _CHUNK_BYTES)

            if not data:
                return

            os.write(pair[1], data)
    finally:
        _close(pair)


def _open(name: str, flags: int, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)


def _close(fds: Tuple[int, int]) -> None:
    for fd in fds:
        os.close(fd)
