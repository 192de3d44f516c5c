"""A new sandbox, ready to run code, with nothing prepared: how long it takes, and what CPU it costs.

Runs in a process whose pool is off. The reference is `python -c pass`: an interpreter without any package
and without any isolation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.floor import CLONE, FORK, Floor
from fumehood_bench.processes import tree_cpu_seconds
from fumehood_bench.reference import PYTHON_PASS, python_pass
from fumehood_bench.timing import in_turn, milliseconds, percentile


def _create() -> float:
    sandboxes: list[Sandbox] = []
    elapsed = milliseconds(lambda: sandboxes.append(Sandbox()))
    sandboxes[0].kill()
    return elapsed


def _cpu_milliseconds(action: Callable[[], object], repetitions: int) -> float:
    """CPU time of one `action`, in all processes it takes, over many in a row."""
    before = tree_cpu_seconds()

    for _ in range(repetitions):
        action()

    return (tree_cpu_seconds() - before) * 1e3 / repetitions


def measure(plan: Plan) -> Iterator[Figure]:
    """Time to a ready sandbox, and CPU of a sandbox from creation to death."""
    with Floor() as floor:
        samples = in_turn(
            plan.repetitions(200),
            ours=_create,
            reference=lambda: milliseconds(python_pass),
            floor=floor.clone,
            fork=floor.fork,
        )

    yield Figure(
        name="new sandbox ready, pool empty, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=len(samples["ours"]),
        target=1.0,
        reference=percentile(samples["reference"], 50),
        reference_name=PYTHON_PASS,
        floor=percentile(samples["floor"], 50),
        floor_name=CLONE,
        note=f"a bare fork: {percentile(samples['fork'], 50):.1f} ms",
    )

    rounds = plan.repetitions(200)
    with Floor() as floor:
        floor.fork()
        yield Figure(
            name="sustained creation, CPU per sandbox",
            unit="ms",
            ours=_cpu_milliseconds(_create, rounds),
            samples=rounds,
            target=1.5,
            reference=_cpu_milliseconds(python_pass, rounds),
            reference_name=PYTHON_PASS,
            floor=_cpu_milliseconds(floor.fork, rounds),
            floor_name=FORK,
            note="created, ready, killed and reaped",
        )
