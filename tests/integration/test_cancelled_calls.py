"""Calls that change a sandbox as a whole, given up on their way: they come before what is asked next, or never."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from fumehood import AsyncSandbox, FileChange, SandboxPausedError, Template
from fumehood.portal import shared_portal

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


async def _begun(changes: AsyncIterator[FileChange]) -> None:
    async for change in changes:
        if change.path.endswith("begun"):
            return


@asynccontextmanager
async def busy(sandbox: AsyncSandbox) -> AsyncIterator[None]:
    """A cell runs while the block does."""
    changes = await sandbox.files.watch(".")
    cell = asyncio.ensure_future(sandbox.run_code(WAITS))

    await _begun(changes)
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


def test_a_restart_that_is_given_up_costs_the_next_call_nothing() -> None:
    """Whoever comes after it runs in the fresh context, and not in the one that is being ended."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            context = await sandbox.create_code_context()
            await sandbox.run_code("x = 1", context=context)

            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.restart_code_context(context)))
                running = asyncio.ensure_future(sandbox.run_code("'x' in globals()", context=context))
                await asyncio.sleep(0)

            execution = await running
            assert (execution.text, execution.error) == ("False", None)

    asyncio.run(main())


def test_a_removal_that_is_given_up_leaves_no_context_behind() -> None:
    """One that is listed and cannot be used would take the place of another."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            before = await sandbox.list_code_contexts()
            context = await sandbox.create_code_context()

            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.remove_code_context(context)))

            # Nobody is told when that is done.
            async with asyncio.timeout(30):
                while await sandbox.list_code_contexts() != before:
                    await sandbox.run_code("1")

    asyncio.run(main())


async def _rollback(sandbox: AsyncSandbox) -> asyncio.Future[object]:
    return asyncio.ensure_future(sandbox.rollback(await sandbox.checkpoint()))


async def _judged(sandbox: AsyncSandbox) -> asyncio.Future[object]:
    changes = await sandbox.files.watch(".")
    judging = asyncio.ensure_future(sandbox.judge(f"import os\n{WAITS}", [("", "")]))
    await _begun(changes)
    return judging


async def _transaction(sandbox: AsyncSandbox) -> asyncio.Future[object]:
    changes = await sandbox.files.watch(".")
    running = asyncio.ensure_future(sandbox.run_code(f"import os\n{WAITS}", transactional=True))
    await _begun(changes)
    return running


@pytest.mark.parametrize(
    "begin", [_rollback, _judged, _transaction], ids=lambda begin: begin.__name__.strip("_")
)
def test_files_that_are_put_back_for_nobody_are_not_those_of_the_next_call(
    begin: Callable[[AsyncSandbox], Awaitable[asyncio.Future[object]]],
) -> None:
    """Whoever writes a file after giving up finds it as it was written."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            # Enough of them for putting back to take its time.
            await sandbox.run_code("for n in range(500): _ = open(f'f{n}', 'w').write('old')")
            call = await begin(sandbox)

            with engine_held():
                await given_up(call)
                writing = asyncio.ensure_future(sandbox.files.write("f499", "new"))
                await asyncio.sleep(0)

            await writing
            # It has all come to its end by then.
            await sandbox.run_code("1")
            assert await sandbox.files.read("f499") == "new"

    asyncio.run(main())


def test_a_pause_that_is_given_up_does_not_freeze_the_next_call() -> None:
    """Code that comes after it is told that the sandbox is paused, and does not wait in it without an end."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as sandbox:
            with engine_held():
                await given_up(asyncio.ensure_future(sandbox.pause()))
                running = asyncio.ensure_future(sandbox.run_code("1"))
                await asyncio.sleep(0)

            with pytest.raises(SandboxPausedError):
                await running

            await sandbox.resume()
            assert (await sandbox.run_code("6 * 7")).text == "42"

    asyncio.run(main())
