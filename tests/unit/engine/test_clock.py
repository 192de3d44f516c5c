"""The clock of a sandbox: it goes, it stands still, and its timers with it."""

from __future__ import annotations

import asyncio
import time

import pytest

from fumehood.engine.clock import SandboxClock


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


def test_a_timer_comes_after_its_time(run):
    """What is due is done once, in order; what was cancelled is not."""

    async def work():
        clock, done = SandboxClock(), []
        last = asyncio.Event()
        clock.call_later(0.3, done.append, "second")
        clock.call_later(0.01, done.append, "first")
        clock.call_later(0.01, done.append, "never").cancel()
        clock.call_later(0.4, last.set)
        await last.wait()
        return done

    assert run(work()) == ["first", "second"]


def test_no_time_passes_while_it_is_stopped(run):
    """Neither for those who read it nor for those who wait; afterwards what was left is left."""

    async def work():
        clock, done = SandboxClock(), asyncio.Event()
        clock.call_later(0.05, done.set)
        clock.stop()
        stopped_at, really = clock.time(), time.monotonic()
        # Made while it stands still, and due no sooner.
        late = clock.call_later(0.05, lambda: None)
        await asyncio.sleep(0.1)
        assert (clock.time(), done.is_set(), clock.is_stopped) == (stopped_at, False, True)
        assert late.due_at == stopped_at + 0.05
        assert clock.stood_still_seconds >= 0.1
        clock.start()
        await done.wait()
        assert time.monotonic() - really >= 0.1
        assert clock.time() - stopped_at < time.monotonic() - really
        assert clock.stood_still_seconds >= 0.1

    run(work())


def test_waiting_ends_by_what_comes_first(run):
    """A future, or the time; and nothing is left of the wait."""

    async def work():
        clock = SandboxClock()
        loop = asyncio.get_running_loop()
        done, never = loop.create_future(), loop.create_future()
        done.set_result(None)
        await clock.wait(never, done, seconds=100)
        await clock.wait(never, seconds=0.01)
        assert not never.done()
        assert not clock._timers

    run(work())


def test_whoever_needs_it_to_go_waits(run):
    """`going` returns at once, or when the pause is over."""

    async def work():
        clock = SandboxClock()
        await clock.going()
        clock.stop()
        clock.stop()
        waiting = asyncio.create_task(clock.going())
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.start()
        clock.start()
        await waiting

    run(work())
