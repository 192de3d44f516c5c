"""Folders and files that one process owns exclusively while it lives.

Runs in the server process and in the host daemon. A lock of the kernel decides which process owns one: it ends with the
process that holds it, however that ends, so that no stale lock remains.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood.errors import InvalidArgumentError


def own_folder(field: str, path: Path) -> Path:
    """Makes a folder, readable only by its owner, and returns it.

    Raises:
        InvalidArgumentError: It cannot be made, belongs to another user, or other users can enter it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            field=field, value=str(path), allowed=f"a folder that can be made here ({error.strerror})"
        ) from None

    found = path.stat()

    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InvalidArgumentError(
            field=field,
            value=str(path),
            allowed="a folder of this user that nobody else can enter: one that is not there yet, or `chmod 700`",
        )

    return path


@contextmanager
def locked(path: Path, taken: InvalidArgumentError) -> Iterator[None]:
    """Holds a lock file while the block runs, and removes it at the end.

    Args:
        path: The file.
        taken: The error to raise when another process holds it.
    """
    fd = _lock(path)

    if fd is None:
        raise taken

    try:
        yield
    finally:
        # Before the lock is released: a process that waits for this file sees that it was replaced.
        path.unlink(missing_ok=True)
        os.close(fd)


def _lock(path: Path) -> int | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None

        if _is_there(fd, path):
            return fd

        # Its holder removed it between our two steps.
        os.close(fd)


def _is_there(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
