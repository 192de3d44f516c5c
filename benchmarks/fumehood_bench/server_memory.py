"""What a server holds: idle with a full pool, and for each sandbox that lives, beside the same through the library.

The server's tree and this process, with all below each, are measured one after the other, with the same template and
no pool, so that every process belongs to a sandbox in use. Memory is PSS.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.server_process import serving, tree_megabytes

_TARGET_MEGABYTES = 0.5
_CODE = "y=1"
_IDLE_POOL = 4


def measure(plan: Plan) -> Iterator[Figure]:
    """The memory of an idle server, and what it adds to each sandbox."""
    with serving(pool_size=_IDLE_POOL) as server:
        server.warm_up()
        idle = server.memory_megabytes()

    yield Figure(
        name=f"idle server, {_IDLE_POOL} sandboxes ready: memory (PSS) of all its processes",
        unit="MB",
        ours=idle,
        samples=1,
        target=None,
    )

    count = plan.repetitions(200)
    ours = _through_server(count)
    library = _through_library(count)
    yield Figure(
        name=f"memory (PSS) per live sandbox beyond the library's, {count} live",
        unit="MB",
        ours=ours - library,
        samples=count,
        target=_TARGET_MEGABYTES,
        note=f"over HTTP {ours:.2f} MB each, through the library {library:.2f} MB each",
    )


def _through_server(count: int) -> float:
    with serving() as server, server.connect() as connection:
        server.warm_up()
        place = server.place
        before = server.memory_megabytes()

        for _ in range(count):
            made = connection.ask(place.request("POST", "/v1/sandboxes", {"timeout_seconds": 3600})).json(201)
            path = f"/v1/sandboxes/{made['id']}/executions"
            assert connection.ask(place.request("POST", path, {"code": _CODE})).json()["error"] is None

        return (server.memory_megabytes() - before) / count


def _through_library(count: int) -> float:
    Sandbox().kill()
    gc.collect()
    before = tree_megabytes(os.getpid())
    sandboxes: list[Sandbox] = []
    try:
        for _ in range(count):
            sandboxes.append(Sandbox())
            assert sandboxes[-1].run_code(_CODE).error is None

        return (tree_megabytes(os.getpid()) - before) / count
    finally:
        for sandbox in sandboxes:
            sandbox.kill()
