"""The pace of WebSockets, and of what kernels answer without a wait: the loop is left to others in between."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import time
from typing import Any

import pytest

from fumehood.dialects.jupyter.audience import Client
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.messages import JupyterMessage
from fumehood.dialects.jupyter.spec import find_spec
from fumehood.server.pace import _CREDIT_SECONDS, ConnectionPace, SharedPace

COST_SECONDS = 0.001
PART = 0.04
# Two milliseconds; sums of fractions may fall short of it.
MESSAGES_OF_A_TURN = 3
REQUESTS = 100
# Busy, the answer, and idle.
FRAMES_OF_A_REQUEST = 3
# By the clock of the test.
BURST_SECONDS = 1.0
MEASURED_SECONDS = 30.0


class Clock(selectors.SelectSelector):
    """A clock of the test's own, and the selector that turns it on by the time for which a loop would sleep.

    What other programs of the machine do changes nothing that is measured by it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    thread_time = monotonic

    def spend(self, seconds: float) -> None:
        """Uses so much processor time."""
        self.now += seconds

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


class ClockLoop(asyncio.SelectorEventLoop):
    """A loop that lives by such a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic()


@pytest.mark.parametrize("connections", [3, 40])
def test_all_connections_without_credit_divide_one_share(
    monkeypatch: pytest.MonkeyPatch, connections: int
) -> None:
    """A burst passes at once; then all connections together get a small part of the loop's time, each as much."""
    clock = Clock()
    monkeypatch.setattr("fumehood.server.pace.time", clock)

    async def work() -> tuple[list[int], float]:
        shared = SharedPace(PART)
        counts = [0] * connections
        over = False

        async def flood(index: int) -> None:
            pace = ConnectionPace(shared)

            while not over:
                with pace.charged():
                    clock.spend(COST_SECONDS)

                counts[index] += 1
                await pace.wait()

        tasks = [asyncio.create_task(flood(index)) for index in range(connections)]
        await asyncio.sleep(BURST_SECONDS * connections)
        assert min(counts) * COST_SECONDS >= _CREDIT_SECONDS
        before, began = list(counts), clock.now
        await asyncio.sleep(MEASURED_SECONDS)
        seconds = clock.now - began
        later = [now - then for now, then in zip(counts, before, strict=True)]
        over = True
        await asyncio.gather(*tasks)
        return later, sum(later) * COST_SECONDS / seconds

    with asyncio.Runner(loop_factory=lambda: ClockLoop(clock)) as runner:
        later, part = runner.run(work())

    # Without a bound they get all of it.
    assert part < 2 * PART
    # Each may be within a turn of its own at both ends.
    assert max(later) - min(later) <= 2 * MESSAGES_OF_A_TURN


def test_a_few_messages_do_not_wait() -> None:
    """The control: what a person at a notebook sends passes at once."""

    async def work() -> float:
        pace = ConnectionPace(SharedPace(0.04))
        began = time.monotonic()

        for _ in range(300):
            with pace.charged():
                pass

            await pace.wait()

        return time.monotonic() - began

    assert asyncio.run(work()) < PART * 10


def test_requests_that_are_answered_without_a_wait_leave_the_loop_to_others() -> None:
    """A kernel with a full queue answers one request in each iteration of the loop."""

    async def work() -> list[int]:
        kernel = Kernel("kernel", "sandbox", find_spec("python3"))
        client = Client("client", None)  # type: ignore[arg-type]  # nothing is asked of the sandbox
        kernel.audience.join(client)
        header = {"msg_id": "1", "msg_type": "kernel_info_request"}
        request = JupyterMessage(channel="shell", header=header, content={})

        for _ in range(REQUESTS):
            kernel.accept(request, 100, client)

        sent = [len(client._queue)]

        while sent[-1] < REQUESTS * FRAMES_OF_A_REQUEST:
            await asyncio.sleep(0)
            sent.append(len(client._queue))

        kernel.die()
        return [now - then for then, now in itertools.pairwise(sent)]

    assert max(asyncio.run(work())) <= FRAMES_OF_A_REQUEST
