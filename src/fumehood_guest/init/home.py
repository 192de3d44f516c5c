"""The home of a sandbox: the files that its template provides, and the folders that pip installs to.

The jail init lists the files once; its clones inherit the list. Each init, which is then the guest's user and runs no
guest code yet, copies the small files and links the large ones, so that the creation time does not depend on the size
of large files. The copies count as the sandbox's own disk and memory.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import List, Tuple

from fumehood_guest.shared.folders import HOME
from fumehood_jail.errors import JailError

GIVEN = "/opt/template"
# The host bounds the size of all copies together by the same number.
LARGE_FILE_BYTES = 1 << 20
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_INSTALLED = (
    ".local",
    ".local/bin",
    ".local/lib",
    f".local/lib/{_PYTHON}",
    f".local/lib/{_PYTHON}/site-packages",
)

# Paths relative to both folders, and modes; a folder comes before its content.
_given: List[Tuple[str, int]] = []
_large: List[str] = []


def find_given() -> None:
    """Lists once, in the jail init, which files the template provides."""
    if os.path.isdir(GIVEN):
        _look_into("")


def set_up() -> None:
    """Copies the template's files into the sandbox, makes the folders of pip, and changes into the home.

    Raises:
        JailError: The files exceed what the sandbox may write.
    """
    os.chdir(HOME)
    try:
        for path, mode in _given:
            _give(path, mode)

        for path in _large:
            os.symlink(f"{GIVEN}/{path}", path)

        for folder in _INSTALLED:
            _make_folder(folder)
    except OSError as error:
        raise JailError(
            "give the sandbox its template's files",
            error.errno or 0,
            str(error),
            "allow it more `disk_bytes` or `inodes`, or give the template fewer files",
        ) from None


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        # The template provides one.
        if not os.path.isdir(path):
            raise


def _look_into(folder: str) -> None:
    for name in sorted(os.listdir(f"{GIVEN}/{folder}")):
        path = f"{folder}{name}"
        info = os.lstat(f"{GIVEN}/{path}")

        if stat.S_ISREG(info.st_mode) and info.st_size > LARGE_FILE_BYTES:
            _large.append(path)
            continue

        _given.append((path, info.st_mode))

        if stat.S_ISDIR(info.st_mode):
            _look_into(f"{path}/")


def _give(path: str, mode: int) -> None:
    source = f"{GIVEN}/{path}"

    if stat.S_ISDIR(mode):
        os.mkdir(path, 0o755)
        return

    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), path)
        return

    given = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    copy = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if mode & 0o100 else 0o644
    )
    try:
        while True:
            data = os.read(given, LARGE_FILE_BYTES)

            if not data:
                return

            os.write(copy, data)
    finally:
        os.close(given)
        os.close(copy)
