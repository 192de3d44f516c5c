"""A host's tool called from inside a cell: from the call in the guest to its answer there.

The guest times each call itself, with nothing else going on: arguments and answer are small, and the function does
nothing. So this is the way, there and back, through the wire, the engine, the caller's thread and the checks.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

from fumehood import HostTool, Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import percentile

_TARGET_MILLISECONDS = 2.0
_CODE = """
import json, time
found = []
for number in range({count}):
    began = time.monotonic()
    {call}
    found.append((time.monotonic() - began) * 1e3)
print(json.dumps(found))
"""


def _search(query: str, limit: int) -> list[str]:
    return [query] * limit


async def _fetch(query: str, limit: int) -> list[str]:
    return [query] * limit


def _latencies(count: int, call: str) -> list[float]:
    tools = {"search": HostTool(_search, max_calls=count), "fetch": HostTool(_fetch, max_calls=count)}

    with Sandbox() as sandbox:
        sandbox.run_code(_CODE.format(count=10, call=call), tools=tools)
        execution = sandbox.run_code(_CODE.format(count=count, call=call), tools=tools)

    assert execution.error is None, execution.error
    assert len(execution.tool_calls) == count
    found: list[float] = json.loads("".join(execution.logs.stdout))
    return found


def _socket_latencies(count: int) -> list[float]:
    """The floor: the same JSON to a thread and back, through a socket."""
    here, there = socket.socketpair()
    question = json.dumps({"query": "x", "limit": 3}).encode()
    found: list[float] = []

    def serve() -> None:
        for _ in range(count):
            asked = json.loads(there.recv(1000))
            there.send(json.dumps(_search(**asked)).encode())

    thread = threading.Thread(target=serve)
    thread.start()

    for _ in range(count):
        began = time.monotonic()
        here.send(question)
        json.loads(here.recv(1000))
        found.append((time.monotonic() - began) * 1e3)

    thread.join()
    here.close()
    there.close()
    return found


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of a plain function and of one that is awaited."""
    count = plan.repetitions(1000)
    floor = percentile(_socket_latencies(count), 50)

    for name, call in (
        ("call of a tool from inside a cell, p50", "search(query='x', limit=3)"),
        ("call of an `async def` tool, awaited inside, p50", "await fetch(query='x', limit=3)"),
    ):
        ours = _latencies(count, call)
        yield Figure(
            name=name,
            unit="ms",
            ours=percentile(ours, 50),
            samples=len(ours),
            target=_TARGET_MILLISECONDS,
            floor=floor,
            floor_name="JSON through a socket to a thread and back",
            note=f"p99 {percentile(ours, 99):.2f} ms",
        )
