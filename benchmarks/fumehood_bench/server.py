"""A stateless run and a cell through the server, by one client whose connection stays open.

Ours and the references are measured in turn; before each stateless run the pools of the server and of the library are
left to refill. The floor is the same thing through the library, in this process: what is above it is the server.
"""

from __future__ import annotations

from collections.abc import Iterator

import fumehood
from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection
from fumehood_bench.pool import wait_until_full
from fumehood_bench.reference import JUPYTER_CELL, PYTHON_PASS, jupyter_kernel, python_pass
from fumehood_bench.server_process import EXECUTE, ServerProcess, check_executed, serving
from fumehood_bench.timing import Samples, in_turn, milliseconds, percentile

_CELL = "y=1"
_TARGET = 0.6


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of each."""
    with serving() as server, server.connect() as connection:
        server.warm_up()
        yield _figure(
            "POST /v1/execute of `print(6*7)`, keep-alive, p50",
            PYTHON_PASS,
            "fumehood.run_code, no server",
            _stateless(plan, server, connection),
        )
        yield _figure(
            "cell `y=1` over HTTP, p50",
            JUPYTER_CELL,
            "Sandbox.run_code, no server",
            _cells(plan, server, connection),
        )


def _stateless(plan: Plan, server: ServerProcess, connection: Connection) -> Samples:
    request = server.place.request("POST", "/v1/execute", EXECUTE)

    def ours() -> float:
        server.wait_until_full()
        wait_until_full()
        elapsed = milliseconds(lambda: check_executed(connection.ask(request).json()))
        server.wait_until_full()
        return elapsed

    def library() -> float:
        wait_until_full()
        elapsed = milliseconds(lambda: fumehood.run_code("print(6*7)"))
        wait_until_full()
        return elapsed

    return in_turn(
        plan.repetitions(300), ours=ours, reference=lambda: milliseconds(python_pass), floor=library
    )


def _cells(plan: Plan, server: ServerProcess, connection: Connection) -> Samples:
    place = server.place
    made = connection.ask(place.request("POST", "/v1/sandboxes", {})).json(201)["id"]
    request = place.request("POST", f"/v1/sandboxes/{made}/executions", {"code": _CELL})

    def ours() -> None:
        assert connection.ask(request).json()["error"] is None

    with jupyter_kernel() as kernel, Sandbox() as sandbox:
        return in_turn(
            plan.repetitions(1000),
            block=20,
            ours=lambda: milliseconds(ours),
            reference=lambda: milliseconds(lambda: kernel.run_cell(_CELL)),
            floor=lambda: milliseconds(lambda: sandbox.run_code(_CELL)),
        )


def _figure(name: str, reference_name: str, floor_name: str, samples: Samples) -> Figure:
    ours = samples["ours"]
    return Figure(
        name=name,
        unit="ms",
        ours=percentile(ours, 50),
        samples=len(ours),
        target=_TARGET,
        reference=percentile(samples["reference"], 50),
        reference_name=reference_name,
        floor=percentile(samples["floor"], 50),
        floor_name=floor_name,
        note=f"p99 {percentile(ours, 99):.1f} ms",
    )
