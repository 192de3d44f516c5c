"""A record of each sandbox: so that one whose server died is known to be lost, not unheard of.

Runs in the server's process, on its loop. It says who had which sandbox and how that ended; what lives now, and all
that can be done with it, is the backend's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, update

from fumehood.storage.database import Database
from fumehood.storage.presence import with_server
from fumehood.storage.tables import SANDBOXES, check_text

LOST = "lost"


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox that lives or lived.

    Attributes:
        id: Its id.
        owner: The key that made it.
        template: What it started from.
        created_at: Seconds since 1970, like all times here.
        ended_at: When it ended, or when its loss was noticed; None while it lives.
        end_reason: Why it ended, `lost` when its server died; None while it lives.
    """

    id: str
    owner: str
    template: str
    created_at: float
    ended_at: float | None = None
    end_reason: str | None = None


class SandboxRecords:
    """The records of a database; they are written by the server that holds the sandboxes."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def begun(self, sandbox_id: str, *, owner: str, template: str) -> None:
        """Record a sandbox that this server has made."""
        check_text("sandbox_id", sandbox_id, max_characters=64)
        check_text("owner", owner, max_characters=64, empty=True)
        check_text("template", template, max_characters=200, empty=True)
        values = {
            "id": sandbox_id,
            "owner": owner,
            "template": template,
            "server_id": await self._database.presence.server_id(),
            "created_at": self._clock(),
        }

        async with self._database.writing("recording a sandbox") as connection:
            await connection.execute(SANDBOXES.insert().values(values))

    async def ended(self, sandbox_id: str, reason: str) -> None:
        """Record the end of a sandbox; a second end changes nothing."""
        check_text("reason", reason, max_characters=32)
        statement = (
            update(SANDBOXES)
            .where(SANDBOXES.c.id == sandbox_id, SANDBOXES.c.ended_at.is_(None))
            .values(ended_at=self._clock(), end_reason=reason)
        )

        async with self._database.writing("recording the end of a sandbox") as connection:
            await connection.execute(statement)

    async def get(self, sandbox_id: str) -> SandboxRecord | None:
        """Return the record of a sandbox, or None; one of a dead server is recorded as lost first."""
        statement = with_server(SANDBOXES).where(SANDBOXES.c.id == sandbox_id)

        async with self._database.reading("looking up a sandbox") as connection:
            row = (await connection.execute(statement)).one_or_none()

        if row is None:
            return None

        if row.ended_at is None and not self._database.presence.is_alive(row):
            await self.ended(sandbox_id, LOST)
            return await self.get(sandbox_id)

        return _record(row)

    async def report_lost(self) -> list[SandboxRecord]:
        """Record the sandboxes of dead servers as lost; return those that were not known to be."""
        async with self._database.reading("looking for lost sandboxes") as connection:
            rows = (
                await connection.execute(with_server(SANDBOXES).where(SANDBOXES.c.ended_at.is_(None)))
            ).all()

        lost = [row.id for row in rows if not self._database.presence.is_alive(row)]
        return [record for sandbox_id in lost if (record := await self.get(sandbox_id)) is not None]

    async def prune(self, *, before: float) -> None:
        """Remove the records of sandboxes that ended before a time."""
        async with self._database.writing("removing old records of sandboxes") as connection:
            await connection.execute(delete(SANDBOXES).where(SANDBOXES.c.ended_at < before))


def _record(row: Any) -> SandboxRecord:
    return SandboxRecord(row.id, row.owner, row.template, row.created_at, row.ended_at, row.end_reason)
