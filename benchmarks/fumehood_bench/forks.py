"""Forks of a sandbox with data: until one has answered, and what many at once take before they write.

Runs in a process whose pool is off, so that a new sandbox is made anew, as a fork is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import descendants, memory_bytes
from fumehood_bench.time_travel import DATA, run
from fumehood_bench.timing import in_turn, percentile

_CHILDREN = 20
# Children of the context itself, which do nothing but wait for its end of a pipe to close.
_BARE_FORKS = f"""
import os
waits, ends = os.pipe()
for _ in range({_CHILDREN}):
    if os.fork() == 0:
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
"""
_END_OF_BARE_FORKS = f"""
os.close(ends)
for _ in range({_CHILDREN}):
    os.wait()
"""


def measure(plan: Plan) -> Iterator[Figure]:
    """The time of a fork, beside a new sandbox, and the memory of twenty."""
    with Sandbox() as sandbox:
        run(sandbox, DATA)
        yield _time(plan, sandbox)
        yield _memory(sandbox)


def _time(plan: Plan, sandbox: Sandbox) -> Figure:
    samples = in_turn(
        plan.repetitions(60),
        block=5,
        ours=lambda: _until_answered(lambda: sandbox.fork(), "len(frame)"),
        reference=lambda: _until_answered(Sandbox, "1"),
    )
    return Figure(
        name="fork of a context with a 100 MB DataFrame and 10 MB of files, until it has answered a cell, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=len(samples["ours"]),
        target=2.5,
        reference=percentile(samples["reference"], 50),
        reference_name="a new empty sandbox, until it has answered a cell",
    )


def _until_answered(make: Callable[[], Sandbox], code: str) -> float:
    start = time.perf_counter()

    with make() as sandbox:
        run(sandbox, code)
        return (time.perf_counter() - start) * 1e3


def _memory(sandbox: Sandbox) -> Figure:
    floor = _memory_of_each(lambda: run(sandbox, _BARE_FORKS), lambda: run(sandbox, _END_OF_BARE_FORKS))
    children: list[Sandbox] = []
    ours = _memory_of_each(
        lambda: children.extend(sandbox.forks(_CHILDREN)), lambda: [child.kill() for child in children]
    )
    return Figure(
        name=f"{_CHILDREN} forks of it at once, each before it writes (PSS of init and context)",
        unit="MB",
        ours=ours,
        samples=_CHILDREN,
        target=8,
        floor=floor,
        floor_name=f"{_CHILDREN} children of the context itself, by os.fork: shared pages count in parts",
    )


def _memory_of_each(make: Callable[[], object], end: Callable[[], object]) -> float:
    """What `make` adds, in MB for each child."""
    others = descendants()
    make()
    try:
        return sum(memory_bytes(pid)[0] for pid in descendants() - others) / _CHILDREN / 1e6
    finally:
        end()
