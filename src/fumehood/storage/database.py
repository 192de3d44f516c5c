"""The database of a server: SQLite in its state folder, or PostgreSQL at a URL; opens, migrates and queries it.

Runs in the server's process, on one event loop. All SQL of the storage runs in `reading` or `writing`, which turn
errors of the driver into StorageError. No statement contains text from outside, and no value is shown in an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from alembic.util import CommandError
from sqlalchemy import Connection, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fumehood.errors import InvalidArgumentError, StorageError, StorageStartError
from fumehood.log import events
from fumehood.storage.migrating import migrate
from fumehood.storage.presence import Presence
from fumehood.storage.sqlite_file import Quarantine, prepare_file, starting

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
        InvalidArgumentError: The address is of no known kind.
        StorageVersionError: A newer fumehood made it. It was left untouched.
        StorageStartError: It cannot be opened.
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
        presence: This process among those that use the database.
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
