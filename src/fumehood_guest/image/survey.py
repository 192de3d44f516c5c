"""Looks into an image: its user, its Pythons and shells, and its working directory.

Runs in an image jail (`image.jail`) whose root is the image, so that every link leads to the image; no program of the
image runs. Copies the working directory, within bounds, into a folder that the host gives it.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

_MOST_TEXT = 1 << 20
_SHELLS = ("/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh")
_CHUNK_BYTES = 1 << 20
# Of a working directory, whose large files are copied once for all sandboxes.
_MAX_WHOLE_BYTES = 1 << 30


def survey(order: Dict[str, Any], target: Optional[int]) -> None:
    """Carries out an order of the host and writes the answer to standard output.

    Args:
        order: `user` (as an image names it), `folders` of programs, `pythons` (names to look for), `workdir`,
            `max_entries`, `max_bytes`, and `name` of the copy of the working directory; or `is_folder`, a path.
        target: A descriptor of the folder for that copy; None for none.
    """
    user = find_user(order["user"])
    answer = {
        "user": user,
        "pythons": _programs(order["folders"], order["pythons"]),
        "shell": next((path for path in _SHELLS if os.access(path, os.X_OK)), ""),
        "is_debian": os.path.exists("/etc/debian_version"),
        "workdir": "none",
    }

    if "is_folder" in order:
        answer["is_folder"] = os.path.isdir(order["is_folder"])

    if target is not None:
        answer["workdir"] = _copy(order, target)

    os.write(1, json.dumps(answer).encode("utf-8", "replace"))


def find_user(text: str) -> Dict[str, Any]:
    """Returns number, group, groups, name and home of a user, as `USER` names one."""
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


def _copy(order: Dict[str, Any], target: int) -> str:
    """Copies the working directory; returns `copied`, `missing`, or `large` where it is beyond the bounds."""
    try:
        source = os.open(order["workdir"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return "missing"

    if not _fits(source, order["max_entries"], order["max_bytes"]):
        return "large"

    folder = target

    # "." is the home itself.
    for part in order["name"].split("/") if order["name"] != "." else ():
        os.mkdir(part, 0o755, dir_fd=folder)
        folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)

    _copy_folder(source, folder)
    return "copied"


def _fits(source: int, max_entries: int, max_bytes: int) -> bool:
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

            is_large = size > max_bytes or whole_size > _MAX_WHOLE_BYTES

            if count > max_entries or is_large or len(waiting) > max_entries:
                for fd in (*waiting, folder):
                    os.close(fd)

                return False

        os.close(folder)

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
