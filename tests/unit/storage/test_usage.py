"""Usage: counted at once, stored later, lost never while the process lives."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.errors import QuotaError, StorageError
from fumehood.storage.policy import KeyPolicy
from fumehood.storage.usage import UsageCounts, UsageLedger

from .scenes import opened

DAY = 86_400.0


async def ledger_of(database, clock, **options) -> UsageLedger:
    ledger = UsageLedger(database, clock=clock, **options)
    await ledger.refresh()
    return ledger


async def read_all(ledger, clock, **options):
    return await ledger.read(since=clock.now - 10 * DAY, until=clock.now + DAY, **options)


async def test_counts_are_there_at_once_and_after_a_restart(database_url, clock):
    counts = {"executions": 2, "cpu_seconds": 0.25, "wall_seconds": 1.5, "bytes_in": 2**40, "bytes_out": 7}

    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)
        ledger.add("a", **counts)
        ledger.add("a", sandboxes=1, errors=1, executions=1)
        expected = UsageCounts(**{**counts, "executions": 3}, sandboxes=1, errors=1)
        assert ledger.today("a") == expected
        await ledger.close()
        assert ledger.today("a") == expected

    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)
        assert ledger.today("a") == expected
        assert ledger.today("b") == UsageCounts()


async def test_it_is_read_by_hour_and_by_day(database_url, clock):
    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)
        noon = clock.now

        for hours, key_id in [(0, "a"), (0.9, "a"), (1, "a"), (1, "b"), (13, "a")]:
            clock.now = noon + hours * 3600
            ledger.add(key_id, executions=1, cpu_seconds=0.5)

        by_hour = [
            (one.key_id, one.start, one.counts.executions) for one in await read_all(ledger, clock, by="hour")
        ]
        midnight = noon - 12 * 3600
        assert by_hour == [
            ("a", noon, 2), ("a", noon + 3600, 1), ("b", noon + 3600, 1), ("a", midnight + 25 * 3600, 1)
        ]  # fmt: skip

        by_day = await read_all(ledger, clock, key_id="a")
        assert [(one.start, one.counts.executions) for one in by_day] == [(midnight, 3), (midnight + DAY, 1)]
        assert by_day[0].counts.cpu_seconds == 1.5

        await ledger.prune(before=midnight + DAY)
        assert [one.start for one in await read_all(ledger, clock)] == [midnight + DAY]
        await ledger.close()


async def test_servers_add_up(database_url, clock):
    """Each flushes what it counted itself; neither overwrites the other, and each hears of the other."""
    async with opened(database_url) as database:
        first, second = await ledger_of(database, clock), await ledger_of(database, clock)

        for _ in range(10):
            first.add("a", executions=1)
            second.add("a", executions=2)
            await asyncio.gather(first.flush(), second.flush())

        await asyncio.gather(first.close(), second.close())
        await first.refresh()
        assert first.today("a").executions == second.today("a").executions == 30


async def test_nothing_is_counted_twice_or_lost_while_it_is_stored(database_url, clock):
    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)
        seen = []

        async def count() -> None:
            for number in range(200):
                ledger.add("a", executions=1)
                seen.append(ledger.today("a").executions == number + 1)
                await asyncio.sleep(0)

        async def flush() -> None:
            for _ in range(10):
                await ledger.flush()

        await asyncio.gather(count(), flush())
        assert all(seen)
        await ledger.close()
        assert (await read_all(ledger, clock))[0].counts.executions == 200


async def test_counts_are_stored_by_themselves(database_url, clock, monkeypatch):
    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock, flush_seconds=0.001)
        real, stored = ledger._store, asyncio.Event()

        async def store(batch):
            await real(batch)
            stored.set()

        monkeypatch.setattr(ledger, "_store", store)
        ledger.add("a", executions=1)
        await asyncio.wait_for(stored.wait(), 30)
        await ledger.close()


async def test_what_could_not_be_stored_is_stored_later(database_url, clock, monkeypatch, caplog):
    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock, flush_seconds=0.001)
        real, failed, stored = ledger._store, asyncio.Event(), asyncio.Event()

        async def store(batch):
            if not failed.is_set():
                failed.set()
                raise StorageError(operation="storing usage", reason="the disk is full")

            await real(batch)
            stored.set()

        monkeypatch.setattr(ledger, "_store", store)
        ledger.add("a", executions=5)
        await asyncio.wait_for(failed.wait(), 30)
        assert ledger.today("a").executions == 5
        await asyncio.wait_for(stored.wait(), 30)
        await ledger.close()
        assert (await read_all(ledger, clock))[0].counts.executions == 5
        assert "tried again" in caplog.text


async def test_quotas_of_the_day(database_url, clock):
    policy = KeyPolicy(executions_per_day=3, cpu_seconds_per_day=10)

    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)

        for _ in range(3):
            ledger.begin_execution("a", policy)

        with pytest.raises(QuotaError, match="executions per day") as caught:
            ledger.begin_execution("a", policy)

        assert caught.value.retry_after_seconds == DAY / 2
        assert ledger.today("a").executions == 3
        ledger.check("b", policy)
        ledger.check("a", KeyPolicy())
        await ledger.close()

        # A restart does not give a new day.
        ledger = await ledger_of(database, clock)

        with pytest.raises(QuotaError):
            ledger.check("a", policy)

        clock.now += DAY / 2
        ledger.begin_execution("a", policy)
        ledger.add("a", cpu_seconds=10.0)

        with pytest.raises(QuotaError, match="CPU seconds"):
            ledger.check("a", policy)

        await ledger.close()


async def test_the_day_turns_with_counts_in_memory(database_url, clock):
    async with opened(database_url) as database:
        ledger = await ledger_of(database, clock)
        ledger.add("a", executions=4)
        clock.now += DAY
        assert ledger.today("a").executions == 0
        ledger.add("a", executions=1)
        await ledger.flush()
        assert ledger.today("a").executions == 1
        assert [one.counts.executions for one in await read_all(ledger, clock)] == [4, 1]
        await ledger.close()


async def test_a_quota_is_not_checked_blindly(database_url, clock):
    """Before the stored usage has been read nobody can say what is left."""
    async with opened(database_url) as database:
        with pytest.raises(StorageError, match="quota"):
            UsageLedger(database, clock=clock).check("a", KeyPolicy(executions_per_day=1))
