"""Sixty-four clients who each run `print(6*7)` again and again, against the library alone doing the same.

Rounds of the two take turns. The library gets what is best for it: sixty-four tasks on its own loop, so that no call
crosses a thread. Both keep as many sandboxes ready; the clients share the processors with what they measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

import fumehood
from fumehood.portal import call
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import AsyncConnection
from fumehood_bench.server_process import EXECUTE, ServerProcess, check_executed, serving
from fumehood_bench.timing import percentile

_CLIENTS = 64
_ROUNDS = 5
_TARGET_RATE = 0.6
_TARGET_TAIL = 20.0
_LIBRARY = "arun_code in 64 tasks, no server"


class _Round:
    """How often something was done in one round, how fast, and how often in vain."""

    def __init__(self, runs: int) -> None:
        self.milliseconds: list[float] = []
        self.failures: list[str] = []
        self.per_second = 0.0
        self._left = runs

    async def client(self, run: Callable[[], Awaitable[None]]) -> None:
        """One client: runs as long as there is something left to run."""
        while self._left > 0:
            self._left -= 1
            begun = time.perf_counter()

            try:
                await run()
            except Exception as error:  # noqa: BLE001 - any of them is one request that failed
                self.failures.append(repr(error))

            self.milliseconds.append((time.perf_counter() - begun) * 1e3)

    def end(self, seconds: float) -> None:
        """The round took so long."""
        self.per_second = len(self.milliseconds) / seconds


async def _library(done: _Round) -> None:
    async def run() -> None:
        execution = await fumehood.arun_code("print(6*7)")
        assert str(execution.logs) == "42\n", execution

    begun = time.perf_counter()
    await asyncio.gather(*(done.client(run) for _ in range(_CLIENTS)))
    done.end(time.perf_counter() - begun)


async def _server(done: _Round, server: ServerProcess) -> None:
    request = server.place.request("POST", "/v1/execute", EXECUTE)
    connections = [await AsyncConnection.open(server.place) for _ in range(_CLIENTS)]

    def runs(connection: AsyncConnection) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            check_executed((await connection.ask(request)).json())

        return run

    begun = time.perf_counter()
    await asyncio.gather(*(done.client(runs(connection)) for connection in connections))
    done.end(time.perf_counter() - begun)

    for connection in connections:
        connection.close()


def measure(plan: Plan) -> Iterator[Figure]:
    """The rate, what failed, and the tail."""
    runs = plan.repetitions(640)
    ours: list[_Round] = []
    library: list[_Round] = []

    with serving() as server:
        server.warm_up()
        call(_library, _Round(_CLIENTS))

        for _ in range(_ROUNDS):
            library.append(_Round(runs))
            call(_library, library[-1])
            ours.append(_Round(runs))
            asyncio.run(_server(ours[-1], server))

    samples = [sample for done in ours for sample in done.milliseconds]
    failures = [failure for done in ours for failure in done.failures]
    assert not any(done.failures for done in library), library[0].failures
    yield Figure(
        name="64 clients: POST /v1/execute a second",
        unit="/s",
        ours=median(done.per_second for done in ours),
        samples=len(samples),
        target=_TARGET_RATE,
        at_least=True,
        reference=median(done.per_second for done in library),
        reference_name=_LIBRARY,
        note=f"median of {_ROUNDS} rounds each",
    )
    yield Figure(
        name="64 clients: requests that failed",
        unit="",
        ours=float(len(failures)),
        samples=len(samples),
        target=0.0,
        note=failures[0] if failures else "",
    )
    yield Figure(
        name="64 clients: p99",
        unit="ms",
        ours=percentile(samples, 99),
        samples=len(samples),
        target=_TARGET_TAIL,
        reference=percentile(samples, 50),
        reference_name="their p50",
    )
