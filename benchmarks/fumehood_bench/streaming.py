"""From a print in the guest to the callback on the host.

The guest prints its monotonic clock and the callback reads the same clock: a sandbox has no time namespace,
so both sides tell the same time. The prints are far apart, so each is a first byte and none waits for
another.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import percentile

_TARGET_MILLISECONDS = 2.0
_CODE = """
import time
for _ in range({count}):
    print(time.monotonic())
    time.sleep(0.005)
"""


def _latencies(count: int) -> list[float]:
    found: list[float] = []

    def on_stdout(text: str) -> None:
        now = time.monotonic()
        found.extend((now - float(line)) * 1e3 for line in text.split())

    with Sandbox() as sandbox:
        sandbox.run_code("import time")
        execution = sandbox.run_code(_CODE.format(count=count), on_stdout=on_stdout)

    assert execution.error is None, execution.error
    assert len(found) == count, f"{len(found)} of {count} prints arrived"
    return found


def _socket_latencies(count: int) -> list[float]:
    """The floor: the same clock sent through a socket to a thread that waits for it."""
    here, there = socket.socketpair()
    found: list[float] = []

    def receive() -> None:
        for _ in range(count):
            text = there.recv(100)
            found.append((time.monotonic() - float(text)) * 1e3)

    thread = threading.Thread(target=receive)
    thread.start()

    for _ in range(count):
        here.send(repr(time.monotonic()).encode())
        time.sleep(0.005)

    thread.join()
    here.close()
    there.close()
    return found


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of the way."""
    count = plan.repetitions(500)
    ours = _latencies(count)
    yield Figure(
        name="print to callback, p50",
        unit="ms",
        ours=percentile(ours, 50),
        samples=len(ours),
        target=_TARGET_MILLISECONDS,
        floor=percentile(_socket_latencies(count), 50),
        floor_name="bytes through a socket to a thread",
        note=f"p99 {percentile(ours, 99):.2f} ms",
    )
