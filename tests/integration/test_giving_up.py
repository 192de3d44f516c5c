"""Calls that change a sandbox as a whole, given up on their way: they come before what is asked next, or never."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from fumehood import AsyncSandbox, Template
from fumehood.facade.portal import shared_portal

PLAIN = Template(name="plain", preload=())
# Beginning, and going on when there is a file.
WAITS = "import time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"


@contextmanager
def engine_held() -> Iterator[None]:
    """The engine hears of all that happens within at once, in its order."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait()

    shared_portal().loop.call_soon_threadsafe(hold)
    held.wait()
    try:
        yield
    finally:
        go_on.set()


@asynccontextmanager
async def busy(sandbox: AsyncSandbox) -> AsyncIterator[None]:
    """A cell runs while the block does."""
    changes = await sandbox.files.watch(".")
    cell = asyncio.ensure_future(sandbox.run_code(WAITS))

    async for change in changes:
        if change.path.endswith("begun"):
            break

    yield
    await sandbox.files.write("go", b"")
    assert (await cell).error is None


async def given_up(call: asyncio.Future[object]) -> None:
    """Gives up a call that has begun."""
    await asyncio.sleep(0)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call


def test_a_rollback_that_is_given_up_undoes_nothing_of_the_next_call() -> None:
    """What the engine hears last is what comes last."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            await sandbox.run_code("x = 'old'")
            point = await sandbox.checkpoint()

            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.rollback(point)))
                setting = asyncio.ensure_future(sandbox.run_code("x = 'new'"))
                await asyncio.sleep(0)

            await setting
            assert (await sandbox.run_code("x")).text == "'new'"

    asyncio.run(main())


def test_a_rollback_that_is_given_up_while_it_waits_is_never_made() -> None:
    """A caller who was told that it took too long is not surprised by it later."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            await sandbox.run_code("import os; x = 'old'")
            point = await sandbox.checkpoint()
            await sandbox.run_code("x = 'new'")

            async with busy(sandbox):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(sandbox.rollback(point), 0.05)

            assert (await sandbox.run_code("x")).text == "'new'"
            # It is there for the next.
            await sandbox.rollback(point)
            assert (await sandbox.run_code("x")).text == "'old'"

    asyncio.run(main())


def test_a_checkpoint_that_is_given_up_leaves_none() -> None:
    """Nobody knows its number, and it would take memory until the sandbox ends."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            await sandbox.run_code("x = 1")

            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.checkpoint()))

            assert await sandbox.list_checkpoints() == []
            assert (await sandbox.run_code("x")).text == "1"

            # A control: one that is not given up.
            await sandbox.checkpoint()
            assert len(await sandbox.list_checkpoints()) == 1

    asyncio.run(main())


def test_what_is_given_up_stands_in_the_audit_record() -> None:
    """Whether it was made or not, somebody has asked for it."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            point = await sandbox.checkpoint()

            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.rollback(point)))

            await sandbox.run_code("1")
            noted = [
                entry.fields for entry in (await sandbox.audit_log()).entries if entry.kind == "checkpoint"
            ]
            assert [fields.get("outcome") for fields in noted] == [None, "given_up"]
            assert noted[1]["checkpoint"] == point.id

    asyncio.run(main())
