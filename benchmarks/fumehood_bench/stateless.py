"""A stateless call in a fresh sandbox from a warm pool, against `python -c pass`.

The two are measured in turn. Between two calls the pool is left to refill, so that its work falls on
neither side.
"""

from __future__ import annotations

from collections.abc import Iterator

import fumehood
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.floor import FORK, Floor
from fumehood_bench.pool import wait_until_full
from fumehood_bench.reference import PYTHON_PASS, python_pass
from fumehood_bench.timing import in_turn, milliseconds, percentile


def _call() -> float:
    wait_until_full()
    elapsed = 0.0

    def call() -> None:
        execution = fumehood.run_code("print(6 * 7)")
        assert str(execution.logs) == "42\n", execution

    elapsed = milliseconds(call)
    wait_until_full()
    return elapsed


def measure(plan: Plan) -> Iterator[Figure]:
    """The call's p50 and p99."""
    with Floor() as floor:
        samples = in_turn(
            plan.repetitions(300), ours=_call, reference=lambda: milliseconds(python_pass), floor=floor.fork
        )

    for percent, target in ((50, 0.3), (99, 1.0)):
        yield Figure(
            name=f"stateless call, warm pool, p{percent}",
            unit="ms",
            ours=percentile(samples["ours"], percent),
            samples=len(samples["ours"]),
            target=target,
            reference=percentile(samples["reference"], percent),
            reference_name=PYTHON_PASS,
            floor=percentile(samples["floor"], percent),
            floor_name=FORK,
        )
