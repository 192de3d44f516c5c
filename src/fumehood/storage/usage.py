"""The usage of keys: counted in memory, stored in batches, read per hour or day, held against quotas.

Counting and checking never wait. What has not been stored yet is lost with the process, at most the last seconds;
several servers of one database learn each other's counts equally often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import delete, func, literal_column, select

from fumehood.errors import QuotaError, StorageError
from fumehood.log import events
from fumehood.storage.database import Database
from fumehood.storage.policy import KeyPolicy
from fumehood.storage.tables import USAGE
from fumehood.storage.write_behind import Later

_HOUR_SECONDS = 3600
_DAY_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageCounts:
    """Usage; a sum over a time.

    Attributes:
        executions: The number begun: code, commands, judged cases, completions and the like.
        sandboxes: The number created.
        cpu_seconds: CPU time of the sandboxes.
        wall_seconds: Wall time of the executions.
        bytes_in: Bytes sent into sandboxes.
        bytes_out: Bytes received from sandboxes.
        errors: Executions that ended with an error.
    """

    executions: int = 0
    sandboxes: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    errors: int = 0

    def __add__(self, other: UsageCounts) -> UsageCounts:
        return UsageCounts(**{name: getattr(self, name) + getattr(other, name) for name in _COUNTED})


_COUNTED = [field.name for field in fields(UsageCounts)]
_SUMS = [func.coalesce(func.sum(USAGE.c[name]), 0).label(name) for name in _COUNTED]


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """The usage of one key in one hour or day, which began at `start` (seconds since 1970, UTC)."""

    key_id: str
    start: float
    counts: UsageCounts


# Counts by key and hour.
_Batch = dict[tuple[str, int], UsageCounts]


class UsageLedger:
    """The usage of all keys.

    `refresh` reads the stored usage; it must be called once before `check`, and happens with each flush from then on.

    Args:
        database: The database that stores the usage.
        flush_seconds: How long counts are collected before they are stored.
        clock: Returns the time.
    """

    def __init__(
        self, database: Database, *, flush_seconds: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._clock = clock
        self._pending: _Batch = {}
        # The day of `_stored`, and the database's counts for each key.
        self._day = -1
        self._stored: dict[str, UsageCounts] = {}
        # The counts of this process for the day, not stored yet.
        self._unstored: dict[str, UsageCounts] = {}
        self._storing = asyncio.Lock()
        self._later = Later(flush_seconds, self.flush)

    def add(self, key_id: str, **counts: float) -> None:
        """Count usage of a key, by the names of the fields of `UsageCounts`."""
        self._count(key_id, UsageCounts(**counts))  # type: ignore[arg-type]

    def begin_execution(self, key_id: str, policy: KeyPolicy, count: int = 1) -> None:
        """Check the quotas of the day and count executions, in one atomic step.

        Raises:
            QuotaError: A quota is used up, or fewer executions are left; nothing was counted.
        """
        self.check(key_id, policy, count)
        self._count(key_id, UsageCounts(executions=count))

    def check(self, key_id: str, policy: KeyPolicy, count: int = 1) -> None:
        """Raise QuotaError if a quota of the day is used up, or does not suffice for so many executions.

        Raises:
            StorageError: The stored usage has not been read yet.
        """
        today = self.today(key_id)
        quotas = (
            ("executions per day", today.executions, policy.executions_per_day, today.executions + count - 1),
            ("CPU seconds per day", today.cpu_seconds, policy.cpu_seconds_per_day, today.cpu_seconds),
        )

        for quota, used, maximum, would_be in quotas:
            if maximum is not None and would_be >= maximum:
                raise QuotaError(
                    quota=quota, used=used, maximum=maximum, retry_after_seconds=self._seconds_to_midnight()
                )

    def today(self, key_id: str) -> UsageCounts:
        """Return the usage of a key today (UTC), stored or not."""
        if self._day < 0:
            operation, reason = "checking a quota", "the usage has not been read yet"
            events.STORAGE_FAILED.log(operation=operation, reason=reason)
            raise StorageError(operation=operation, reason=reason)

        self._turn_the_day()
        nothing = UsageCounts()
        return self._stored.get(key_id, nothing) + self._unstored.get(key_id, nothing)

    async def refresh(self) -> None:
        """Read today's usage of all keys, that of other servers included."""
        async with self._storing:
            await self._read_today()

    async def flush(self) -> None:
        """Store the counts, and read those of other servers."""
        async with self._storing:
            batch, self._pending = self._pending, {}

            if batch:
                try:
                    await self._store(batch)
                except BaseException:
                    # Counted again rather than lost, should the failure have come after the commit.
                    for place, counts in batch.items():
                        self._pending[place] = counts + self._pending.get(place, UsageCounts())

                    raise

                self._subtract_stored(batch)

            await self._read_today()

    async def close(self) -> None:
        """Store the counts that are still in memory."""
        await self._later.close()

    async def read(
        self, *, since: float, until: float, key_id: str | None = None, by: Literal["hour", "day"] = "day"
    ) -> list[UsagePeriod]:
        """Return the usage of one key, or of all, per hour or day (UTC); periods without usage are left out.

        Args:
            since: A time in the first period.
            until: The last period is the one before this time.
            key_id: The key, or None for all.
            by: Length of a period.
        """
        await self.flush()
        length = _HOUR_SECONDS * (_DAY_HOURS if by == "day" else 1)
        hours = length // _HOUR_SECONDS
        first = int(since // length) * hours
        last = -int(-until // _HOUR_SECONDS)
        # A literal, since PostgreSQL takes the expressions of SELECT and GROUP BY for two when each has a parameter.
        period = (USAGE.c.hour - USAGE.c.hour % literal_column(str(hours))).label("period")
        statement = (
            select(USAGE.c.key_id, period, *_SUMS)
            .where(USAGE.c.hour >= first, USAGE.c.hour < last)
            .group_by(USAGE.c.key_id, period)
            .order_by(period, USAGE.c.key_id)
        )

        if key_id is not None:
            statement = statement.where(USAGE.c.key_id == key_id)

        async with self._database.reading("reading usage") as connection:
            rows = (await connection.execute(statement)).all()

        return [UsagePeriod(row.key_id, float(row.period * _HOUR_SECONDS), _counts(row)) for row in rows]

    async def prune(self, *, before: float) -> None:
        """Remove the usage before a time."""
        async with self._database.writing("removing old usage") as connection:
            await connection.execute(delete(USAGE).where(USAGE.c.hour < int(before // _HOUR_SECONDS)))

    def _count(self, key_id: str, counts: UsageCounts) -> None:
        place = (key_id, int(self._clock() // _HOUR_SECONDS))
        self._pending[place] = self._pending.get(place, UsageCounts()) + counts
        self._turn_the_day()
        self._unstored[key_id] = self._unstored.get(key_id, UsageCounts()) + counts
        self._later.ask()

    def _turn_the_day(self) -> None:
        """Start again when a new day has begun since the last reading."""
        today = self._today()

        if self._day not in (-1, today):
            self._day, self._stored, self._unstored = today, {}, {}

    def _subtract_stored(self, batch: Mapping[tuple[str, int], UsageCounts]) -> None:
        """Subtract the stored counts from the unstored ones; no await lies between a commit and this."""
        self._unstored = {}

        for (key_id, hour), counts in self._pending.items():
            if hour // _DAY_HOURS == self._today():
                self._unstored[key_id] = self._unstored.get(key_id, UsageCounts()) + counts

        for (key_id, hour), counts in batch.items():
            if hour // _DAY_HOURS == self._day:
                self._stored[key_id] = self._stored.get(key_id, UsageCounts()) + counts

    async def _store(self, batch: _Batch) -> None:
        statement = self._database.insert(USAGE)
        statement = statement.on_conflict_do_update(
            index_elements=["key_id", "hour"],
            set_={name: USAGE.c[name] + statement.excluded[name] for name in _COUNTED},
        )
        # In one order for all servers, so that two that add to the same rows do not deadlock.
        rows = [
            {"key_id": key_id, "hour": hour, **{name: getattr(counts, name) for name in _COUNTED}}
            for (key_id, hour), counts in sorted(batch.items(), key=lambda item: item[0])
        ]

        async with self._database.writing("storing usage") as connection:
            await connection.execute(statement, rows)

    async def _read_today(self) -> None:
        today = self._today()
        statement = (
            select(USAGE.c.key_id, *_SUMS).where(USAGE.c.hour >= today * _DAY_HOURS).group_by(USAGE.c.key_id)
        )

        async with self._database.reading("reading usage") as connection:
            rows = (await connection.execute(statement)).all()

        self._day = today
        self._stored = {row.key_id: _counts(row) for row in rows}
        self._subtract_stored({})

    def _today(self) -> int:
        return int(self._clock() // (_HOUR_SECONDS * _DAY_HOURS))

    def _seconds_to_midnight(self) -> float:
        day_seconds = _HOUR_SECONDS * _DAY_HOURS
        return day_seconds - self._clock() % day_seconds


def _counts(row: Any) -> UsageCounts:
    # PostgreSQL sums whole numbers as decimals.
    values = {name: getattr(row, name) for name in _COUNTED}
    return UsageCounts(
        **{name: float(value) if name.endswith("_seconds") else int(value) for name, value in values.items()}  # type: ignore[arg-type]
    )
