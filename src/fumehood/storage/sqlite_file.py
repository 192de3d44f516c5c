"""Prepares the file of a SQLite database before it is opened for writing: makes it, checks it, or renames it aside.

Runs in the server's process at its start, in a thread, under the lock that `starting` holds. A file is renamed only
when SQLite itself says that it is no database or a broken one; a file that is locked, unreadable or newer stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import stat
import time
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fumehood.errors import StorageStartError
from fumehood.log import events
from fumehood.storage.migrating import check_revisions

_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The database, its write-ahead log, and the index of that log.
_PARTS = ("", "-wal", "-shm")
_LOCK_POLL_SECONDS = 0.05
# How long a check waits for another process that holds the database.
_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A broken database that was renamed aside.

    Attributes:
        moved_to: Its path now; `-wal` and `-shm` beside it, if it had them.
        reason: SQLite's message about it.
    """

    moved_to: str
    reason: str


class _BrokenDatabase(Exception):  # noqa: N818 - it never leaves this module
    """A reason to rename a file aside; the text is SQLite's."""


@contextlib.asynccontextmanager
async def starting(path: str, *, patience_seconds: float = 60.0) -> AsyncIterator[None]:
    """Hold the lock under which one process at a time checks and migrates the database at `path`."""
    make_folder(os.path.dirname(path), path)

    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageStartError(location=path, reason=str(error)) from error

    try:
        await _lock(descriptor, path, time.monotonic() + patience_seconds)
        yield
    finally:
        # Closing releases the lock; the file stays, since removing it would let two processes lock two files.
        os.close(descriptor)


def make_folder(folder: str, location: str) -> None:
    """Make a folder that only this user can enter, if it is not there."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageStartError(location=location, reason=str(error)) from error


def prepare_file(path: str) -> Quarantine | None:
    """Leave a sound database, or an empty file for a new one, at `path`, readable only by this user.

    Returns:
        The file that was renamed aside, or None.
    """
    try:
        quarantine = _checked(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

        # Its -wal and -shm get its mode.
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            os.chmod(path, 0o600)
    except OSError as error:
        raise StorageStartError(location=path, reason=str(error)) from error

    return quarantine


async def _lock(descriptor: int, path: str, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise StorageStartError(
                    location=path, reason="another process has been starting on it for too long"
                ) from None

            await asyncio.sleep(_LOCK_POLL_SECONDS)


def _checked(path: str) -> Quarantine | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # A log without its database would be replayed into the new one.
        return (
            _put_aside(path, "the database is gone, its log is not")
            if os.path.exists(f"{path}-wal")
            else None
        )

    if not stat.S_ISREG(mode):
        raise StorageStartError(location=path, reason="it is not a regular file")

    try:
        revisions = _read(path)
    except _BrokenDatabase as broken:
        return _put_aside(path, str(broken))
    except sqlite3.Error as error:
        raise StorageStartError(location=path, reason=str(error)) from error

    check_revisions(path, revisions)
    return None


def _read(path: str) -> list[str]:
    """Return the revisions of the database; raise _BrokenDatabase if it is none. Nothing is written."""
    address = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro"

    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_CHECK_SECONDS)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])

            if verdict != "ok":
                raise _BrokenDatabase(verdict)

            tables = connection.execute(
                "SELECT 1 FROM sqlite_schema WHERE name = 'alembic_version'"
            ).fetchall()
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() if tables else []
            return [str(row[0]) for row in rows]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
            raise _BrokenDatabase(str(error)) from error

        raise


def _put_aside(path: str, reason: str) -> Quarantine:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = f"{path}.corrupt-{stamp}"
    number = 1

    while any(os.path.lexists(target + part) for part in _PARTS):
        number += 1
        target = f"{path}.corrupt-{stamp}-{number}"

    # The database first: should this process die in between, the next one finds only a log and moves that as well.
    for part in _PARTS:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + part, target + part)

    events.DATABASE_PUT_ASIDE.log(location=path, moved_to=target, reason=reason)
    return Quarantine(moved_to=target, reason=reason)
