"""The watches of a sandbox that ends: whoever watches hears of it, however much has come before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fumehood.engine import watches
from fumehood.engine.watches import LiveWatches
from fumehood.errors import SandboxClosedError
from fumehood.values.requests import WatchFiles

BOUND = watches._MAX_QUEUED_CHANGES


class Box:
    """Plays a sandbox with an init that watches, and can end."""

    def __init__(self) -> None:
        self.has_ended = False
        self.asked: list[str] = []
        self.watches = LiveWatches(self.ask, self.check_alive)

    async def ask(self, verb: str, **_: Any) -> tuple[Any, bytes]:
        self.asked.append(verb)
        return {"watch_id": 1}, b""

    def check_alive(self) -> None:
        if self.has_ended:
            raise SandboxClosedError(sandbox_id="box", reason="killed")

    def change(self, count: int, begin: str = "") -> None:
        for number in range(count):
            change = {"kind": "create", "name": f"{begin}{number}", "path": f"/{begin}{number}"}
            self.watches.note({"watch_id": 1, "changes": [change]})

    def end(self) -> None:
        self.has_ended = True
        self.watches.close()


@pytest.mark.parametrize("count", [0, BOUND - 1, BOUND, BOUND + 1])
def test_a_watcher_hears_of_the_end_behind_all_that_was_kept(count):
    """With as many changes as are kept, which code inside can see to, as with fewer."""

    async def work() -> None:
        box = Box()
        changes = await box.watches.begin(WatchFiles(path="/"))
        box.change(count)
        box.end()
        seen = []

        async def follow() -> None:
            async for change in changes:
                seen.append(change.name)

        following = asyncio.ensure_future(follow())

        # All is there already: nothing that is still to come is waited for.
        for _ in range(3):
            await asyncio.sleep(0)

        assert following.done()
        assert isinstance(following.exception(), SandboxClosedError)
        assert seen == [str(number) for number in range(min(count, BOUND))]

    asyncio.run(work())


def test_long_names_are_kept_in_a_smaller_number():
    """Code decides how long they are, and nobody looks; whoever looks misses none."""

    async def work() -> None:
        box = Box()
        changes = await box.watches.begin(WatchFiles(path="/"))
        name = "x" * 4000

        for _ in range(BOUND):
            box.change(1, name)
            await anext(changes)

        box.change(BOUND, name)
        box.end()
        kept = 0

        async def look() -> None:
            nonlocal kept

            async for _ in changes:
                kept += 1

        with pytest.raises(SandboxClosedError):
            await look()

        assert 500 < kept < watches._MAX_QUEUED_BYTES / 8000

    asyncio.run(work())


def test_what_comes_while_somebody_looks_is_kept_again():
    """The bound is on what waits, not on what comes."""

    async def work() -> None:
        box = Box()
        changes = await box.watches.begin(WatchFiles(path="/"))
        box.change(BOUND + 5)

        for number in range(BOUND):
            assert (await anext(changes)).name == str(number)

        box.change(1)
        assert (await anext(changes)).name == "0"
        await changes.aclose()
        assert box.asked == ["watch", "unwatch"]

    asyncio.run(work())


def test_who_begins_to_watch_what_ends_meanwhile_does_not_wait_for_it():
    """Init has answered, and the sandbox ended before anybody heard the answer."""

    async def work() -> None:
        box = Box()
        answer = box.ask

        async def ends(verb: str, **arguments: Any) -> tuple[Any, bytes]:
            answered = await answer(verb, **arguments)
            box.end()
            return answered

        box.watches = LiveWatches(ends, box.check_alive)

        with pytest.raises(SandboxClosedError):
            await box.watches.begin(WatchFiles(path="/"))

    asyncio.run(work())
