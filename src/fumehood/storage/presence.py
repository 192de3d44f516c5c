"""The list of servers that use a database, and which of them are dead.

Work that a server has begun and not ended (a request, a sandbox) is lost with it; this list is how the others, and the
same server after its restart, know. A dead process on the same machine is known at once, one on another machine by its
missing heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy import Select, Table, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fumehood.cancellation import stop
from fumehood.errors import StorageError
from fumehood.storage.tables import SERVERS

_BEAT_SECONDS = 10.0
# Several heartbeats, and the difference of clocks on different machines.
_SILENCE_SECONDS = 60.0
# Longer than any unfinished record that names a server.
_KEPT_SECONDS = 7 * 86_400.0


class Presence:
    """This process among the servers of a database; it is listed when it first needs its id.

    Args:
        writing: `Database.writing` of that database.
    """

    def __init__(self, writing: Callable[[str], AbstractAsyncContextManager[AsyncConnection]]) -> None:
        self._writing = writing
        self._id = secrets.token_hex(16)
        self._place = _place()
        self._announcing = asyncio.Lock()
        self._beats: asyncio.Task[None] | None = None

    async def server_id(self) -> str:
        """Return the id of this process, which is in the database from now on."""
        if self._beats is not None:
            return self._id

        async with self._announcing:
            if self._beats is None:
                await self._announce()
                self._beats = asyncio.create_task(self._beat())

        return self._id

    def is_alive(self, row: Any) -> bool:
        """Return whether the server that `row` was joined with (`with_server`) still runs."""
        if row.place is None:
            return False

        if row.place == self._place:
            return bool(_started(row.pid) == row.pid_started)

        return bool(time.time() - row.seen_at < _SILENCE_SECONDS)

    async def end(self) -> None:
        """Remove this process from the list: its unfinished work is lost."""
        if self._beats is None:
            return

        await stop(self._beats)
        self._beats = None

        # If the database cannot be reached, the missing heartbeat shows the end.
        with contextlib.suppress(StorageError):
            async with self._writing("leaving the list of servers") as connection:
                await connection.execute(delete(SERVERS).where(SERVERS.c.id == self._id))

    async def _announce(self) -> None:
        now = time.time()
        values = {
            "id": self._id,
            "place": self._place,
            "pid": os.getpid(),
            "pid_started": _started(os.getpid()),
            "started_at": now,
            "seen_at": now,
        }

        async with self._writing("joining the list of servers") as connection:
            await connection.execute(delete(SERVERS).where(SERVERS.c.seen_at < now - _KEPT_SECONDS))
            await connection.execute(SERVERS.insert().values(values))

    async def _beat(self) -> None:
        statement = update(SERVERS).where(SERVERS.c.id == self._id)

        while True:
            await asyncio.sleep(_BEAT_SECONDS)

            # The database logs its failure; the next heartbeat comes.
            with contextlib.suppress(StorageError):
                async with self._writing("saying that this server lives") as connection:
                    await connection.execute(statement.values(seen_at=time.time()))


def with_server(table: Table) -> Select[Any]:
    """Return a SELECT of the rows of a table, each with the columns that `is_alive` needs of its server."""
    server = (SERVERS.c.place, SERVERS.c.pid, SERVERS.c.pid_started, SERVERS.c.seen_at)
    return select(table, *server).outerjoin(SERVERS, SERVERS.c.id == table.c.server_id)


def _place() -> str:
    """Return a name for the scope of this process's pids: this boot, and this PID namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}:{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> int:
    """Return when a process started, in the kernel's ticks, or -1 if there is none; a pid alone is reused."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # proc(5): after the name, which may hold anything, come the state and 18 fields that do not matter.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1

    # A zombie has ended; it only waits to be reaped.
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
