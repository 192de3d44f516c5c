"""The files of a state folder: owned by one process and created once, the server's secret among them.

A lock of the kernel decides which process owns a folder: it ends with the process that holds it, so that no stale lock
remains. A file is created complete or not at all, readable only by its owner. The secret, from which the secrets of
the server's parts are derived, never leaves this process; signatures stay valid over a restart.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood.errors import InvalidArgumentError


def make_once(path: Path, content: bytes) -> bool:
    """Creates a file durably; if it exists already, leaves it unchanged and returns False."""
    if os.path.lexists(path):
        return False

    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")

    try:
        _write(draft, content)
        # Unlike a rename it replaces nothing: the second process reads the file of the first.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()

    _sync_folder(path.parent)
    return True


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def own_folder(field: str, path: Path) -> Path:
    """Makes a folder, readable only by its owner, and returns it.

    Raises:
        InvalidArgumentError: The folder cannot be made, belongs to another user, or other users can enter it.
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
            allowed="a folder of this user that no other user can enter: one that is not there yet, or `chmod 700`",
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


_FILE = "secret"
_BYTES = 32


def server_secret(state: Path) -> bytes:
    """Returns the secret of this state folder, made now if there is none.

    Raises:
        InvalidArgumentError: The file can be read by others, or is incomplete.
    """
    path = state / _FILE

    make_once(path, secrets.token_bytes(_BYTES))
    return _read(path)


def derive(secret: bytes, purpose: str) -> bytes:
    """Returns the secret for one purpose, from which those for others cannot be derived."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()


def _read(path: Path) -> bytes:
    secret = path.read_bytes()

    if path.stat().st_mode & 0o077 or len(secret) != _BYTES:
        raise InvalidArgumentError(
            field="secret file",
            value=str(path),
            allowed=f"{_BYTES} bytes that no other user can read; remove it for a new one",
        )

    return secret
