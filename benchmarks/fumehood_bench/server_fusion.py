"""256 calls of SandboxFusion's `POST /run_code` in flight for a minute, and a burst that is more than the queue holds.

Each call prints a number of its own, so an answer that belongs to another call is found out. While the queue holds all
of them every answer must be 200 and right. In the burst those beyond it may be told to come again, by a 504.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import AsyncConnection
from fumehood_bench.server_process import ServerProcess, serving
from fumehood_bench.timing import percentile

_IN_FLIGHT = 256
_SECONDS = 60.0
_QUICK_SECONDS = 10.0
_PLACES = 8
_QUEUED = 64


class _Tally:
    """What came back."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.kinds: Counter[str] = Counter()
        self._number = 0

    async def call(self, connection: AsyncConnection, server: ServerProcess) -> None:
        """Makes one call, and notes how it was answered."""
        self._number += 1
        number = self._number
        body = {"language": "python", "code": f"print({number})", "run_timeout": 30}
        request = server.place.request("POST", "/run_code", body)
        begun = time.perf_counter()
        answer = await connection.ask(request)
        self.milliseconds.append((time.perf_counter() - begun) * 1e3)

        if answer.status != 200:
            self.kinds[str(answer.status)] += 1
            return

        result = answer.json()
        is_right = result["status"] == "Success" and result["run_result"]["stdout"] == f"{number}\n"
        self.kinds["right" if is_right else f"wrong: {result['status']}: {result['message']}"] += 1

    @property
    def total(self) -> int:
        """All calls that were made."""
        return self.kinds.total()


async def _sustain(tally: _Tally, server: ServerProcess, seconds: float) -> None:
    ends = time.monotonic() + seconds

    async def client(connection: AsyncConnection) -> None:
        while time.monotonic() < ends:
            await tally.call(connection, server)

    connections = [await AsyncConnection.open(server.place) for _ in range(_IN_FLIGHT)]
    await asyncio.gather(*map(client, connections))


async def _burst(tally: _Tally, server: ServerProcess) -> None:
    connections = [await AsyncConnection.open(server.place) for _ in range(_IN_FLIGHT)]
    await asyncio.gather(*(tally.call(connection, server) for connection in connections))


def measure(plan: Plan) -> Iterator[Figure]:
    """What was not as it should be: sustained, and beyond the queue."""
    seconds = _QUICK_SECONDS if plan.quick else _SECONDS
    sustained, burst = _Tally(), _Tally()

    with serving() as server:
        server.warm_up()
        begun = time.monotonic()
        asyncio.run(_sustain(sustained, server, seconds))
        elapsed = time.monotonic() - begun

    yield Figure(
        name=f"256 SandboxFusion calls in flight for {seconds:g} s: not 200 and right",
        unit="",
        ours=float(sustained.total - sustained.kinds["right"]),
        samples=sustained.total,
        target=0.0,
        note=(
            f"{sustained.total / elapsed:.0f} a second, p50 {percentile(sustained.milliseconds, 50):.0f} ms, "
            f"p99 {percentile(sustained.milliseconds, 99):.0f} ms; {dict(sustained.kinds)}"
        ),
    )

    with serving(max_concurrent_runs=_PLACES, max_queued_runs=_QUEUED) as server:
        server.warm_up()
        asyncio.run(_burst(burst, server))

    # Those that fit must have been served; of the others each is served or told to come again.
    unserved = max(0, _PLACES + _QUEUED - burst.kinds["right"])
    yield Figure(
        name=f"256 at once for {_PLACES} places and a queue of {_QUEUED}: neither right nor a due 504",
        unit="",
        ours=float(burst.total - burst.kinds["right"] - burst.kinds["504"] + unserved),
        samples=burst.total,
        target=0.0,
        note=f"{dict(burst.kinds)}",
    )
