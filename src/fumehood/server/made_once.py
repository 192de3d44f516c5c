"""A file that is created once, complete or not at all, and readable only by its owner.

A start that is interrupted leaves nothing under the file's name, so the next start creates it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def make_once(path: Path, content: bytes) -> bool:
    """Creates a file durably; returns False, and leaves it alone, if there is one already."""
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
