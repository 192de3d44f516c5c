"""The quota of sandboxes, where the count of those that live is a message away and others are made meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fumehood.errors import QuotaError
from fumehood.port.backend import Backend
from fumehood.server.allowance import Allowance, CpuMeter, Spending
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings
from fumehood.storage.policy import KeyPolicy
from fumehood.storage.usage import UsageLedger


class Host:
    """Plays a backend that counts when it is asked, and whose answer is on its way until it may arrive."""

    def __init__(self) -> None:
        self.alive = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def list(self, owner: str | None = None) -> tuple[Any, ...]:
        counted = (owner,) * self.alive
        await self.answers.wait()
        return counted


class Caller:
    """A key that may have so many sandboxes, and that makes some."""

    def __init__(self, maximum: int) -> None:
        self.host = Host()
        ledger, metrics = cast("UsageLedger", SimpleNamespace(add=lambda *_, **__: None)), ServerMetrics()
        self.spending = Spending(ledger, metrics, CpuMeter(cast("Backend", self.host), ledger, metrics))
        self.allowance = Allowance(
            Principal(key_id="key", policy=KeyPolicy(max_sandboxes=maximum)),
            self.spending,
            cast("Backend", self.host),
            ServerSettings(),
        )
        self.may_end = asyncio.Event()

    async def make(self, count: int = 1, *, fails: bool = False) -> None:
        async with self.allowance.new_sandboxes(count):
            await self.may_end.wait()

            if fails:
                raise OSError("it did not start")

            self.host.alive += count


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_ends_while_the_living_are_counted_counts() -> None:
    """It was not there when they were counted, and is made when the answer comes."""

    async def work() -> None:
        caller = Caller(1)
        first = asyncio.ensure_future(caller.make())
        await _settle()
        caller.host.answers.clear()
        second = asyncio.ensure_future(caller.make())
        await _settle()
        caller.may_end.set()
        await first
        caller.host.answers.set()

        with pytest.raises(QuotaError) as refused:
            await second

        assert (refused.value.used, refused.value.maximum, caller.host.alive) == (1, 1, 1)

    asyncio.run(work())


def test_what_begins_while_the_living_are_counted_counts() -> None:
    """Of those that ask at once, as many get through as may."""

    async def work() -> None:
        caller = Caller(3)
        caller.host.answers.clear()
        caller.may_end.set()
        making = [asyncio.ensure_future(caller.make()) for _ in range(8)]
        await _settle()
        caller.host.answers.set()
        results = await asyncio.gather(*making, return_exceptions=True)
        assert sum(isinstance(result, QuotaError) for result in results) == 5
        assert caller.host.alive == 3

    asyncio.run(work())


@pytest.mark.parametrize("fails", [False, True])
def test_one_after_the_other_the_whole_quota_can_be_used(fails: bool) -> None:
    """What has failed takes no place, and what has ended gives its own back."""

    async def work() -> None:
        caller = Caller(2)
        caller.may_end.set()

        for _ in range(3):
            if fails:
                with pytest.raises(OSError, match="it did not start"):
                    await caller.make(fails=True)

        await caller.make(2)

        with pytest.raises(QuotaError):
            await caller.make()

        caller.host.alive = 0
        await caller.make()
        await caller.make()
        assert caller.host.alive == 2

    asyncio.run(work())
