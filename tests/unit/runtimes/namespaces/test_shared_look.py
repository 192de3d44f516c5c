"""Looks at a guest that callers share: never two at a time, and at most one a second."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from fumehood.runtimes.namespaces import guest as guests
from fumehood.runtimes.namespaces.shared_look import KEPT_SECONDS, SharedLook
from fumehood.values.limits import Limits


class Looks:
    """Looks that end when they may, at a time that is set."""

    def __init__(self) -> None:
        self.count = 0
        self.now = 0.0
        self.may_end = asyncio.Event()
        self.fails = False

    async def look(self) -> int:
        """Returns how many there have been."""
        self.count += 1
        await self.may_end.wait()

        if self.fails:
            raise OSError("no look")

        return self.count

    def clock(self) -> float:
        """The time that is set."""
        return self.now


def test_callers_share_a_look_and_its_answer_for_a_second() -> None:
    """One that is cancelled leaves it to the others; the second begins at the end of the look."""

    async def ask() -> None:
        looks = Looks()
        shared = SharedLook(looks.look, looks.clock)
        callers = [asyncio.create_task(shared.answer()) for _ in range(20)]
        await asyncio.sleep(0)
        callers[0].cancel()
        looks.now = 7.0
        looks.may_end.set()
        assert await asyncio.gather(*callers[1:]) == [1] * 19
        assert callers[0].cancelled()
        looks.now += 0.9 * KEPT_SECONDS
        assert (await shared.answer(), looks.count) == (1, 1)
        looks.now += 0.2 * KEPT_SECONDS
        assert (await shared.answer(), looks.count) == (2, 2)

    asyncio.run(ask())


def test_a_look_that_failed_is_not_kept() -> None:
    async def ask() -> None:
        looks = Looks()
        looks.may_end.set()
        looks.fails = True
        shared = SharedLook(looks.look, looks.clock)

        with pytest.raises(OSError, match="no look"):
            await shared.answer()

        looks.fails = False
        assert await shared.answer() == 2

    asyncio.run(ask())


def test_the_ports_of_a_guest_are_looked_at_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count(1)
    spawner: Any = None
    monkeypatch.setattr(
        "fumehood.runtimes.namespaces.listening.read_listening", lambda folder, pids: next(looks)
    )
    monkeypatch.setattr(guests.LinuxGuest, "network_view", lambda guest: "/proc/self/net")

    async def ask() -> list[Any]:
        guest = guests.LinuxGuest(spawner, 1, 1, Limits())
        return [*await asyncio.gather(*(guest.listening() for _ in range(20))), await guest.listening()]

    assert asyncio.run(ask()) == [1] * 21
