"""The fair queue: bounded, fair to keys, honest about time, and never losing a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from fumehood.errors import OverloadedError, QueueTimeoutError
from fumehood.server.queue import FairQueue


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def _logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if getattr(record, "event", "") == event]


class Runs:
    """Runs that take a place when they may, note their names, and hold it until they are let go."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.begun: list[str] = []
        self.go = asyncio.Event()

    def start(self, key_id: str, name: str, timeout_seconds: float = 60.0) -> asyncio.Task[None]:
        async def run() -> None:
            async with self.queue.place(key_id, timeout_seconds):
                self.begun.append(name)
                await self.go.wait()

        return asyncio.create_task(run())


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@on_loop
async def test_places_are_bounded() -> None:
    runs = Runs(FairQueue(places=2, capacity=10))
    tasks = [runs.start("a", str(number)) for number in range(5)]
    await _settle()
    assert (runs.begun, runs.queue.running, runs.queue.waiting) == (["0", "1"], 2, 3)

    runs.go.set()
    await asyncio.gather(*tasks)
    assert (len(runs.begun), runs.queue.running, runs.queue.waiting) == (5, 0, 0)


@on_loop
async def test_the_number_of_places_changes_with_the_machines() -> None:
    """More places let those in that wait; with fewer, none is let in until as many have left."""
    runs = Runs(FairQueue(places=1, capacity=10))
    tasks = [runs.start("a", str(number)) for number in range(5)]
    await _settle()
    runs.queue.set_places(3)
    await _settle()
    assert (runs.begun, runs.queue.running, runs.queue.waiting) == (["0", "1", "2"], 3, 2)

    runs.queue.set_places(2)
    tasks[0].cancel()
    await _settle()
    assert (len(runs.begun), runs.queue.running) == (3, 2)
    tasks[1].cancel()
    await _settle()
    assert (runs.begun[3:], runs.queue.running, runs.queue.waiting) == (["3"], 2, 1)

    runs.go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (len(runs.begun), runs.queue.running, runs.queue.waiting) == (5, 0, 0)


@on_loop
async def test_keys_take_turns() -> None:
    """A flood of one key delays itself, not the one run of another."""
    runs = Runs(FairQueue(places=1, capacity=100))
    holder = runs.start("x", "holder")
    await _settle()
    tasks = [runs.start("flood", f"f{number}") for number in range(10)]
    await _settle()
    tasks += [runs.start("quiet", "q0"), runs.start("quiet", "q1")]
    await _settle()
    runs.go.set()
    await asyncio.gather(holder, *tasks)
    assert runs.begun[:5] == ["holder", "f0", "q0", "f1", "q1"]


@on_loop
async def test_a_full_queue_says_when_to_come_again(caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs(FairQueue(places=1, capacity=1))
    tasks = [runs.start("a", "0"), runs.start("a", "1")]
    await _settle()

    with pytest.raises(OverloadedError) as refused:
        async with runs.queue.place("b", 60):
            raise AssertionError("there was no place")

    assert refused.value.retry_after_seconds >= 1
    assert _logged(caplog, "queue.overloaded") == [
        {
            "key_id": "b",
            "reason": "the server is full: 1 runs wait",
            "waiting": 1,
            "running": 1,
            "capacity": 1,
        }
    ]
    runs.go.set()
    await asyncio.gather(*tasks)


@on_loop
async def test_who_cannot_be_served_in_time_is_reported_at_once() -> None:
    queue = FairQueue(places=1, capacity=1000)
    queue._mean_seconds = 10.0
    runs = Runs(queue)
    tasks = [runs.start("a", str(number)) for number in range(3)]
    await _settle()

    with pytest.raises(OverloadedError, match="would wait about 20 s"):
        async with queue.place("b", 1.0):
            raise AssertionError("there was no place")

    runs.go.set()
    await asyncio.gather(*tasks)


@on_loop
async def test_time_in_the_queue_ends(caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs(FairQueue(places=1, capacity=10))
    holder = runs.start("a", "holder")
    await _settle()

    with pytest.raises(QueueTimeoutError):
        async with runs.queue.place("b", 0.05):
            raise AssertionError("there was no place")

    assert runs.queue.waiting == 0
    (line,) = _logged(caplog, "queue.timed_out")
    assert line["key_id"] == "b"
    assert line["waited_seconds"] >= 0.05
    runs.go.set()
    await holder
    assert runs.queue.running == 0


@on_loop
async def test_a_waiter_that_gives_up_leaves_no_hole() -> None:
    """Given up while waiting, or in the very moment when its turn has come."""
    runs = Runs(FairQueue(places=1, capacity=10))
    holder = runs.start("a", "holder")
    await _settle()
    early, late, last = (runs.start("b", name) for name in ("early", "late", "last"))
    await _settle()
    early.cancel()
    await _settle()
    runs.go.set()
    # Its turn comes when the holder leaves; it is cancelled before it hears of it.
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(holder, early, late, last, return_exceptions=True)
    assert "last" in runs.begun
    assert (runs.queue.running, runs.queue.waiting) == (0, 0)


@on_loop
@pytest.mark.parametrize("others", [0, 1])
async def test_a_wait_may_end_in_the_turn_in_which_a_place_comes_free(others: int) -> None:
    """Who gives up hears that, even if the one who leaves has passed its place on meanwhile."""
    runs = Runs(FairQueue(places=1, capacity=10))
    holder = runs.start("a", "holder")
    await _settle()
    given_up = runs.start("b", "given up")
    last = [runs.start("b", "last") for _ in range(others)]
    await _settle()
    # The holder's turn comes first: whoever gives up still stands in the queue.
    runs.go.set()
    given_up.cancel()
    results = await asyncio.gather(holder, given_up, *last, return_exceptions=True)
    assert [type(result) for result in results] == [
        type(None),
        asyncio.CancelledError,
        *[type(None)] * others,
    ]
    assert runs.begun == ["holder", *["last"] * others]
    assert (runs.queue.running, runs.queue.waiting) == (0, 0)


@on_loop
async def test_the_time_may_be_over_in_the_turn_in_which_a_place_comes_free() -> None:
    loop = asyncio.get_running_loop()
    runs = Runs(FairQueue(places=1, capacity=10))
    holder = runs.start("a", "holder")
    await _settle()
    timers: list[asyncio.TimerHandle] = []
    set_timer = loop.call_at

    def noted(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(set_timer(*args, **kwargs))
        return timers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", noted)
        late = runs.start("b", "late")
        await _settle()

    (over,) = timers
    runs.go.set()
    # What the loop would do if the time were over now.
    over._run()
    results = await asyncio.gather(holder, late, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), QueueTimeoutError]
    assert (runs.begun, runs.queue.running, runs.queue.waiting) == (["holder"], 0, 0)


@on_loop
@pytest.mark.parametrize("gives_up", [False, True])
async def test_room_may_be_made_where_a_wait_is_given_up_in_the_same_turn(gives_up: bool) -> None:
    """A newcomer gets the place of a flood's newest, whether that has just given up or is told to."""
    runs = Runs(FairQueue(places=1, capacity=3))
    flood = [runs.start("flood", f"flood {number}") for number in range(4)]
    await _settle()
    other = runs.start("other", "other")

    if gives_up:
        flood[-1].cancel()

    await _settle()
    assert (runs.queue.waiting, other.done(), [task.done() for task in flood]) == (
        3,
        False,
        [False] * 3 + [True],
    )
    runs.go.set()
    results = await asyncio.gather(*flood, other, return_exceptions=True)
    told = asyncio.CancelledError if gives_up else OverloadedError
    assert [type(result) for result in results] == [type(None)] * 3 + [told, type(None)]
    assert (runs.queue.running, runs.queue.waiting) == (0, 0)


@on_loop
async def test_a_flood_fills_the_queue_for_itself_alone() -> None:
    """Whoever has fewer waiting than another gets in, in the place of that one's newest."""
    runs = Runs(FairQueue(places=1, capacity=10))
    flood = [runs.start("flood", f"flood {number}") for number in range(12)]
    await asyncio.sleep(0)
    refused = [task for task in flood if task.done()]
    # One runs and ten wait: the flood is not let in the place of its own.
    assert [type(task.exception()) for task in refused] == [OverloadedError]
    other = [runs.start("other", f"other {number}") for number in range(6)]
    await asyncio.wait(other, return_when=asyncio.FIRST_COMPLETED)
    assert runs.queue.waiting == 10
    # They share the places evenly, and no more: the sixth would have more than its share.
    assert [task.done() for task in other] == [False] * 5 + [True]
    runs.go.set()
    results = await asyncio.gather(*flood, *other, return_exceptions=True)
    assert sum(isinstance(result, OverloadedError) for result in results) == 1 + 5 + 1
    assert (runs.queue.running, runs.queue.waiting) == (0, 0)
    # And they take turns.
    assert [name.split()[0] for name in runs.begun[1:11]] == ["flood", "other"] * 5


@on_loop
async def test_a_flood_lengthens_its_own_wait_alone() -> None:
    runs = Runs(FairQueue(places=1, capacity=1000))
    flood = [runs.start("flood", "flood") for _ in range(500)]
    await asyncio.sleep(0)
    assert runs.queue.expected_seconds("flood") > 100 * runs.queue.expected_seconds("other")
    # It would have been told that it cannot be through in time.
    patient = runs.start("other", "other", timeout_seconds=60)
    await asyncio.sleep(0)
    assert not patient.done()
    runs.go.set()
    await asyncio.gather(*flood, patient)
