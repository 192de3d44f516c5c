"""The pace of WebSockets, and of what kernels answer without a wait: the loop is left to others in between."""

from __future__ import annotations

import asyncio
import itertools
import time

from tests.waiting import at_some_pace

from fumehood.dialects.jupyter.audience import Client
from fumehood.dialects.jupyter.channels import ConnectionPace, SharedPace
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.messages import JupyterMessage
from fumehood.dialects.jupyter.spec import find_spec

COST_SECONDS = 0.001
PART = 0.04
REQUESTS = 100
# Busy, the answer, and idle.
FRAMES_OF_A_REQUEST = 3


def spend(seconds: float) -> None:
    """Uses so much processor time."""
    ends = time.thread_time() + seconds

    while time.thread_time() < ends:
        continue


def test_all_connections_without_credit_divide_one_share() -> None:
    """A burst passes at once; then three connections together get a small part of the loop's time."""

    async def work(seconds_each: float) -> tuple[list[int], float]:
        shared = SharedPace()
        counts = [0, 0, 0]
        over = False

        async def flood(index: int) -> None:
            pace = ConnectionPace(shared)

            while not over:
                with pace.charged():
                    spend(COST_SECONDS)

                counts[index] += 1
                await pace.wait()

        tasks = [asyncio.create_task(flood(index)) for index in range(3)]
        # The burst is over by then, unless the processor was somewhere else.
        await asyncio.sleep(seconds_each)
        before, began = list(counts), time.monotonic()
        await asyncio.sleep(seconds_each)
        seconds = time.monotonic() - began
        later = [now - then for now, then in zip(counts, before, strict=True)]
        over = True
        await asyncio.gather(*tasks)
        return later, sum(later) * COST_SECONDS / seconds

    def scene(seconds_each: float) -> None:
        later, part = asyncio.run(work(seconds_each))
        # Without a bound they get all of it; beside other programs the measure is rough.
        assert part < 5 * PART
        assert max(later) - min(later) <= 3

    at_some_pace(scene, 0.6, 2, 6)


def test_a_few_messages_do_not_wait() -> None:
    """The control: what a person at a notebook sends passes at once."""

    async def work() -> float:
        pace = ConnectionPace(SharedPace())
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
