"""What becomes of work, and of the task that waits for it, when that task is cancelled before, during and after."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from fumehood.cancellation import (
    abandon,
    cancel_and_wait,
    cancel_once,
    complete,
    complete_or_undo,
    consume_result,
    finish,
    first_of,
    is_cancelled,
    keep,
    stop,
    wait_shared,
    when_done,
)

Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
FAULT = ValueError("it failed")


class Work:
    """Work that ends when it may, and remembers how."""

    def __init__(self, result: Any = "made") -> None:
        self.gate = asyncio.Event()
        self.result = result
        self.ended = ""

    async def __call__(self) -> Any:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise

        if isinstance(self.result, Exception):
            self.ended = "failed"
            raise self.result

        self.ended = "done"
        return self.result


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def nothing_reported():
    """Within it the loop reports no error: neither one that was not read, nor one of a callback."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    yield reported
    await turns()
    gc.collect()
    await turns()
    assert reported == []


def in_loop(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with nothing_reported():
            await asyncio.wait_for(scene(), 60)

    asyncio.run(run())


async def complete_or_ignore(work: Awaitable[Any]) -> Any:
    return await complete_or_undo(work, lambda _: None)


async def wait_shared_task(work: Awaitable[Any]) -> Any:
    task = asyncio.ensure_future(work)
    consume_result(task)
    return await wait_shared(task)


ALL = pytest.mark.parametrize("wait", [complete, complete_or_ignore, finish, wait_shared_task])
LEAVING = pytest.mark.parametrize("wait", [complete, complete_or_ignore, wait_shared_task])


@ALL
def test_a_result_is_returned(wait: Wait) -> None:
    """Nothing is cancelled."""

    async def scene() -> None:
        work = Work()
        work.gate.set()
        assert await wait(work()) == "made"

    in_loop(scene)


@ALL
def test_an_error_is_raised(wait: Wait) -> None:
    """Nothing is cancelled."""

    async def scene() -> None:
        work = Work(FAULT)
        work.gate.set()

        with pytest.raises(ValueError, match="it failed"):
            await wait(work())

    in_loop(scene)


@ALL
def test_cancelled_before_its_first_step(wait: Wait) -> None:
    """The caller had not begun to wait: it is cancelled, and the work with it, which was never started."""

    async def scene() -> None:
        work = Work()

        async def call() -> None:
            await wait(work())

        caller = asyncio.create_task(call())
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert work.ended == ""

    in_loop(scene)


@LEAVING
@pytest.mark.parametrize("result", ["made", FAULT])
@pytest.mark.parametrize("turns_before", [1, 5])
def test_a_cancelled_caller_leaves_at_once_and_the_work_goes_on(
    wait: Wait, result: Any, turns_before: int
) -> None:
    """Also when the work has not had its first step; what fails afterwards is dropped."""

    async def scene() -> None:
        work = Work(result)
        caller = asyncio.create_task(_call(wait, work))
        await turns(turns_before)
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert work.ended == ""
        gc.collect()
        work.gate.set()
        await turns()
        assert work.ended == ("failed" if result is FAULT else "done")

    in_loop(scene)


@LEAVING
def test_a_second_cancellation_changes_nothing(wait: Wait) -> None:
    """The work goes on."""

    async def scene() -> None:
        work = Work()
        caller = asyncio.create_task(_call(wait, work))
        await turns()
        caller.cancel()
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        work.gate.set()
        await turns()
        assert work.ended == "done"

    in_loop(scene)


@ALL
def test_cancelled_after_the_end(wait: Wait) -> None:
    """In the turn of the loop in which the work ends a cancellation still comes first."""

    async def scene() -> None:
        work = Work()
        caller = asyncio.create_task(_call(wait, work))
        await turns()
        work.gate.set()
        await asyncio.sleep(0)
        assert work.ended == "done"
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

    in_loop(scene)


@pytest.mark.parametrize("result", ["made", FAULT])
def test_finish_stays_however_often_it_is_cancelled(result: Any) -> None:
    """The work is not cancelled; the caller is when it has ended, and an error of it is dropped."""

    async def scene() -> None:
        work = Work(result)
        caller = asyncio.create_task(_call(finish, work))
        await turns()

        for _ in range(3):
            caller.cancel()
            await turns()
            assert not caller.done()

        work.gate.set()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert work.ended == ("failed" if result is FAULT else "done")

    in_loop(scene)


def test_finish_ends_when_the_work_is_cancelled_by_others() -> None:
    """As at the end of a loop, which cancels all tasks."""

    async def scene() -> None:
        work = Work()
        task = asyncio.create_task(work())
        caller = asyncio.create_task(finish(task))
        await turns()
        caller.cancel()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert work.ended == "cancelled"

    in_loop(scene)


def test_finish_lets_a_timeout_through() -> None:
    """A deadline around it is TimeoutError, as ever, once the work has ended."""

    async def scene() -> None:
        work = Work()
        asyncio.get_running_loop().call_later(0.05, work.gate.set)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await finish(work())

        assert work.ended == "done"

    in_loop(scene)


def test_what_a_cancelled_caller_has_made_is_undone() -> None:
    """Once it is there, and only then."""

    async def scene() -> None:
        work, undone = Work(), []
        caller = asyncio.create_task(_call(lambda made: complete_or_undo(made, undone.append), work))
        await turns()
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert undone == []
        work.gate.set()
        await turns()
        assert undone == ["made"]

    in_loop(scene)


def test_what_was_made_as_its_caller_was_cancelled_is_undone() -> None:
    """The result is there, and never reaches the caller."""

    async def scene() -> None:
        work, undone = Work(), []
        caller = asyncio.create_task(_call(lambda made: complete_or_undo(made, undone.append), work))
        await turns()
        work.gate.set()
        await asyncio.sleep(0)
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        assert undone == ["made"]

    in_loop(scene)


def test_what_reaches_its_caller_or_fails_is_not_undone() -> None:
    """There is nothing to undo."""

    async def scene() -> None:
        undone: list[Any] = []
        work = Work()
        work.gate.set()
        assert await complete_or_undo(work(), undone.append) == "made"
        work = Work(FAULT)
        caller = asyncio.create_task(_call(lambda made: complete_or_undo(made, undone.append), work))
        await turns()
        caller.cancel()
        work.gate.set()

        with pytest.raises(asyncio.CancelledError):
            await caller

        await turns()
        assert work.ended == "failed"
        assert undone == []

    in_loop(scene)


def test_abandoned_work_is_cancelled_and_nothing_undone() -> None:
    """It has made nothing."""

    async def scene() -> None:
        work, undone = Work(), []
        task = asyncio.create_task(work())
        await turns()
        abandon(task, undone.append)
        await turns()
        assert work.ended == "cancelled"
        assert undone == []

    in_loop(scene)


def test_abandoned_work_that_has_returned_is_undone_at_once() -> None:
    """Before `abandon` returns."""

    async def scene() -> None:
        work, undone = Work(), []
        work.gate.set()
        task = asyncio.create_task(work())
        await turns()
        abandon(task, undone.append)
        assert undone == ["made"]

    in_loop(scene)


@pytest.mark.parametrize("result", ["made", FAULT])
def test_abandoned_work_that_does_not_heed_its_cancellation(result: Any) -> None:
    """What it returns all the same is undone, what it fails with dropped."""

    async def scene() -> None:
        undone: list[Any] = []

        async def stubborn() -> Any:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

            if result is FAULT:
                raise FAULT

            return result

        task = asyncio.create_task(stubborn())
        await turns()
        abandon(task, undone.append)
        await turns()
        assert undone == ([] if result is FAULT else ["made"])

    in_loop(scene)


def test_a_shared_future_is_left_as_it_is() -> None:
    """Another caller gets its result."""

    async def scene() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        first, second = (asyncio.create_task(wait_shared(future)) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        assert first.cancelled()
        future.set_result("x")
        assert await second == "x"

    in_loop(scene)


def test_cancel_and_wait_ends_tasks_and_drops_their_errors() -> None:
    """Those that were done are left; none of the errors is reported."""

    async def scene() -> None:
        done, failed, going = Work(), Work(FAULT), Work()
        done.gate.set()
        failed.gate.set()
        tasks = [asyncio.create_task(one()) for one in (done, failed, going)]
        await turns()
        await cancel_and_wait(*tasks)
        assert [done.ended, failed.ended, going.ended] == ["done", "failed", "cancelled"]
        assert tasks[0].result() == "made"
        await cancel_and_wait()

    in_loop(scene)


def test_cancel_and_wait_leaves_when_it_is_cancelled() -> None:
    """The tasks come to their ends, and are not cancelled a second time."""

    async def scene() -> None:
        may_end, is_tidy = asyncio.Event(), []

        async def tidy() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()
                is_tidy.append(True)
                raise FAULT

        task = asyncio.create_task(tidy())
        await turns()
        caller = asyncio.create_task(cancel_and_wait(task))
        del task
        await turns()
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        gc.collect()
        may_end.set()
        await turns()
        assert is_tidy == [True]

    in_loop(scene)


def test_the_first_of_several_ends_the_others() -> None:
    """The others have ended when the caller goes on, and their errors are reported by nothing."""

    async def scene() -> None:
        first, second, third = Work(), Work(), Work(FAULT)
        tasks = [asyncio.create_task(work()) for work in (first, second, third)]
        racing = asyncio.create_task(first_of(*tasks))
        await turns()
        assert not racing.done()
        first.gate.set()
        third.gate.set()
        assert await racing == {tasks[0], tasks[2]}
        assert (first.ended, second.ended, third.ended) == ("done", "cancelled", "failed")
        assert tasks[0].result() == "made"

    in_loop(scene)


def test_a_race_whose_caller_is_cancelled_ends_all_of_it() -> None:
    """The caller stays until they have ended, and is cancelled then; a second cancellation lets it leave."""

    async def late(gate: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    async def scene() -> None:
        gate = asyncio.Event()
        tasks = [asyncio.create_task(late(gate)) for _ in range(2)]
        racing = asyncio.create_task(first_of(*tasks))
        await turns()
        racing.cancel()
        await turns()
        assert not racing.done()
        gate.set()
        await turns()
        assert racing.cancelled()
        assert all(task.cancelled() for task in tasks)

        gate.clear()
        tasks = [asyncio.create_task(late(gate)) for _ in range(2)]
        racing = asyncio.create_task(first_of(*tasks))
        await turns()
        racing.cancel()
        await turns()
        racing.cancel()
        await turns()
        assert racing.cancelled()
        gate.set()
        await turns()
        assert all(task.cancelled() for task in tasks)

    in_loop(scene)


def test_stop_raises_what_a_task_had_failed_with() -> None:
    """A cancelled one has failed with nothing."""

    async def scene() -> None:
        going, failed = Work(), Work(FAULT)
        failed.gate.set()
        tasks = [asyncio.create_task(one()) for one in (going, failed)]
        await turns()
        await stop(tasks[0])
        assert going.ended == "cancelled"

        with pytest.raises(ValueError, match="it failed"):
            await stop(tasks[1])

    in_loop(scene)


def test_stop_does_not_swallow_the_cancellation_of_its_caller() -> None:
    """The task it waits for was cancelled as well, and the two are told apart."""

    async def scene() -> None:
        task = asyncio.create_task(Work()())
        await turns()
        caller = asyncio.create_task(stop(task))
        await asyncio.sleep(0)
        caller.cancel()

        with pytest.raises(asyncio.CancelledError):
            await caller

        await turns()
        assert task.cancelled()

    in_loop(scene)


def test_a_task_is_cancelled_once() -> None:
    """How it ends is not broken off."""

    async def scene() -> None:
        async def tidy() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await turns()

            return "tidy"

        task = asyncio.create_task(tidy())
        await turns()
        assert cancel_once(task)
        await asyncio.sleep(0)
        assert cancel_once(task)
        assert await task == "tidy"

        work = Work()
        work.gate.set()
        task = asyncio.create_task(work())
        await turns()
        assert not cancel_once(task)

    in_loop(scene)


def test_the_current_task_knows_whether_it_is_cancelled() -> None:
    """A CancelledError of a task that it waits for is not its own."""

    async def scene() -> None:
        seen: list[bool] = []

        async def wait_for(task: asyncio.Task[Any]) -> None:
            try:
                await asyncio.wait([task])
                task.result()
            except asyncio.CancelledError:
                seen.append(is_cancelled())

        inner = asyncio.create_task(Work()())
        caller = asyncio.create_task(wait_for(inner))
        await turns()
        inner.cancel()
        await caller
        inner = asyncio.create_task(Work()())
        caller = asyncio.create_task(wait_for(inner))
        await turns()
        caller.cancel()
        await caller
        inner.cancel()
        assert seen == [False, True]
        assert not is_cancelled()

    in_loop(scene)


def test_kept_work_is_not_collected() -> None:
    """Nothing but the module refers to it."""

    async def scene() -> None:
        ended: asyncio.Queue[bool] = asyncio.Queue()

        async def work() -> None:
            # Only this frame refers to the future, and only the future to the task.
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)

        def note(task: asyncio.Task[None]) -> None:
            ended.put_nowait(isinstance(task.exception(), TimeoutError))

        keep(work()).add_done_callback(note)
        gc.collect()
        assert await ended.get()

    in_loop(scene)


def test_an_action_is_called_when_a_future_is_done() -> None:
    """With its own arguments."""

    async def scene() -> None:
        called: list[tuple[int, str]] = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        when_done(future, lambda number, word: called.append((number, word)), 1, "x")
        await turns()
        assert called == []
        future.cancel()
        await turns()
        assert called == [(1, "x")]

    in_loop(scene)


def test_a_consumed_error_is_not_reported() -> None:
    """Whether it comes before or after."""

    async def scene() -> None:
        work = Work(FAULT)
        task = asyncio.create_task(work())
        consume_result(task)
        work.gate.set()
        await turns()
        del task

        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(FAULT)
        consume_result(failed)

    in_loop(scene)


async def _call(wait: Callable[[Any], Awaitable[Any]], work: Work) -> Any:
    return await wait(work())
