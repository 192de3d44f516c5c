"""The database of a server: SQLite in its state folder, or PostgreSQL at a URL; opens, migrates and queries it.

All SQL of the storage runs in `reading` or `writing`, which turn errors of the driver into StorageError. No statement
contains text from outside, and no value is shown in an error. The file of a SQLite database is renamed aside only when
SQLite itself says that it is no database or a broken one. A migration is one transaction, or nothing; a database with
a revision that this version does not know comes from a newer one, and is refused before anything is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pathlib
import sqlite3
import stat
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Table, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fumehood.errors import InvalidArgumentError, StorageError, StorageStartError, StorageVersionError
from fumehood.log import events
from fumehood.storage.presence import Presence

_FOLDER = pathlib.Path(__file__).with_name("migrations")
# Any number that nothing else in the same database locks: "fumehood" in ASCII.
_ADVISORY_LOCK = int.from_bytes(b"fumehood", "big", signed=True)


def known_revisions() -> list[str]:
    """Return the revisions of this version, oldest first."""
    revisions = ScriptDirectory.from_config(_config()).walk_revisions()
    return [revision.revision for revision in revisions][::-1]


def check_revisions(location: str, found: Iterable[str]) -> None:
    """Raise StorageVersionError if a database has a revision that this version of fumehood does not know."""
    known = known_revisions()

    for revision in found:
        if revision not in known:
            raise StorageVersionError(location=location, found=revision, known=known[-1])


def migrate(connection: Connection, location: str) -> None:
    """Migrate the database of `connection` to the newest revision.

    Args:
        connection: A connection in a transaction, which the caller commits.
        location: Its name in an error; without a password.
    """
    if connection.dialect.name == "postgresql":
        # Held until the transaction ends in any way; a second server waits here and then finds nothing to do.
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ADVISORY_LOCK})

    check_revisions(location, MigrationContext.configure(connection).get_current_heads())
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    # configparser reads the value, and interprets percent signs.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


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
    """Make a folder that only this user can enter, if it does not exist."""
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


_ALLOWED = "sqlite:///PATH or postgresql://USER@HOST/NAME"
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_BUSY_SECONDS = 10


def default_url(state_folder: str) -> str:
    """Return the address of the SQLite database in a server's state folder."""
    path = os.path.join(os.path.abspath(state_folder), "fumehood.db")
    return URL.create("sqlite+aiosqlite", database=path).render_as_string()


async def open_database(url: str) -> Database:
    """Open the database at `url`, make it if it is SQLite and not there, and migrate it to the newest revision.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`; the latter with any option of libpq.

    Raises:
        InvalidArgumentError: The address is of an unknown kind.
        StorageVersionError: The database was made by a newer fumehood; it was left untouched.
        StorageStartError: The database cannot be opened.
    """
    address = _parse(url)

    if address.get_backend_name() == "postgresql":
        return await _opened(_postgresql_engine(address), address.set(query={}).render_as_string(), None)

    path = address.database or ""

    async with starting(path):
        quarantined = await asyncio.to_thread(prepare_file, path)
        return await _opened(_sqlite_engine(address), path, quarantined)


class Database:
    """An open database.

    Attributes:
        location: Its address without a password.
        quarantined: The broken database that this one replaced at the start, or None.
        presence: Registers this process among the users of the database.
    """

    def __init__(self, engine: AsyncEngine, location: str, quarantined: Quarantine | None) -> None:
        self.location = location
        self.quarantined = quarantined
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        # SQLite has one writer; a waiting task holds no connection, and is served in order.
        self._turn = asyncio.Lock()
        self.presence = Presence(self.writing)

    @contextlib.asynccontextmanager
    async def reading(self, operation: str) -> AsyncIterator[AsyncConnection]:
        """Hold a read-only transaction; `operation` names it in an error."""
        async with self._transaction(operation, {}) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self, operation: str, *, durable: bool = False) -> AsyncIterator[AsyncConnection]:
        """Hold a transaction that writes; it is committed at the end of the block.

        Args:
            operation: Its name in an error.
            durable: Survives a power failure as soon as the block has ended. Otherwise SQLite may lose the last
                moments before one (not before a crash of the process), and is a good deal faster.
        """
        options = {"fumehood_writes": True, "fumehood_durable": durable}

        async with self._turn if self._is_sqlite else contextlib.nullcontext():
            async with self._transaction(operation, options) as connection:
                yield connection

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT with ON CONFLICT, which SQLAlchemy has only for each dialect."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    async def close(self) -> None:
        """Remove this process from the list of servers and close all connections."""
        await self.presence.end()
        await self._engine.dispose()

    @contextlib.asynccontextmanager
    async def _transaction(self, operation: str, options: dict[str, Any]) -> AsyncIterator[AsyncConnection]:
        committing = False

        try:
            async with self._engine.connect() as connection:
                await connection.execution_options(**options)

                async with connection.begin():
                    yield connection
                    committing = bool(options)
        except SQLAlchemyError as error:
            events.STORAGE_FAILED.log(location=self.location, operation=operation, reason=_said(error))
            raise StorageError(
                operation=operation, reason=_said(error), outcome_unknown=committing
            ) from error


def _parse(url: str) -> URL:
    # An address may hold a password, so no error shows more of it than its scheme.
    scheme = url.partition("://")[0][:40]

    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgumentError(field="database_url", value=scheme, allowed=_ALLOWED) from None

    if address.drivername not in _DRIVERS:
        raise InvalidArgumentError(field="database_url", value=scheme, allowed=_ALLOWED)

    address = address.set(drivername=_DRIVERS[address.drivername])

    if address.get_backend_name() == "sqlite":
        if address.query or address.host or not address.database or address.database == ":memory:":
            raise InvalidArgumentError(
                field="database_url", value=scheme, allowed="sqlite:///PATH of a file, without options"
            )

        address = address.set(database=os.path.abspath(address.database))

    return address


async def _opened(engine: AsyncEngine, location: str, quarantined: Quarantine | None) -> Database:
    try:
        async with engine.connect() as connection:
            await connection.execution_options(fumehood_writes=True, fumehood_durable=True)

            async with connection.begin():
                await connection.run_sync(migrate, location)
    except (SQLAlchemyError, CommandError) as error:
        await engine.dispose()
        raise StorageStartError(location=location, reason=_said(error)) from error
    except BaseException:
        await engine.dispose()
        raise

    return Database(engine, location, quarantined)


def _postgresql_engine(address: URL) -> AsyncEngine:
    if "connect_timeout" not in address.query:
        address = address.update_query_dict({"connect_timeout": str(_BUSY_SECONDS)})

    try:
        # A connection that the server or a firewall has dropped is noticed before it is used.
        return create_async_engine(address, hide_parameters=True, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise StorageStartError(
            location=address.set(query={}).render_as_string(),
            reason=f"the driver is not installed ({error.name})",
            hint="pip install 'fumehood[server,postgres]'",
        ) from error


def _sqlite_engine(address: URL) -> AsyncEngine:
    engine = create_async_engine(address, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine.sync_engine, "connect", _prepare_connection)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _prepare_connection(connection: Any, _record: object) -> None:
    # The driver begins no transactions: `_begin` does, so that they include DDL.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()

    if not options.get("fumehood_writes"):
        connection.exec_driver_sql("BEGIN")
        return

    level = "FULL" if options.get("fumehood_durable") else "NORMAL"
    connection.exec_driver_sql(f"PRAGMA synchronous = {level}")
    # Takes the write lock at once: a transaction that reads first and writes later would be refused when another has
    # written in between, however long it may wait.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _said(error: Exception) -> str:
    """Return the driver's message, without the statement and its values."""
    said = str(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)
    return said.strip().partition("\n")[0]
