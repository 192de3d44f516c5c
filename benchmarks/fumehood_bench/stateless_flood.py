"""Sixty-four callers at once, a fresh sandbox for each call, against as many `python -c pass` at once.

Rounds of the two take turns, so that both see the same machine. Two figures for each: runs a second, which whatever
else runs on the machine takes a part of, and CPU time of all processes, which it hardly moves.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import fumehood
from fumehood.portal import call
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import tree_cpu_seconds
from fumehood_bench.reference import PYTHON_PASS

_AT_ONCE = 64
_ROUNDS = 5
_RUNS = 500
_TARGET_RATE = 0.7
_TARGET_CPU = 1.5


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round of runs came to."""

    per_second: float
    cpu_milliseconds: float


def _round(runs: int, work: Callable[[int], None]) -> _Round:
    cpu, begun = tree_cpu_seconds(), time.perf_counter()
    work(runs)
    seconds = time.perf_counter() - begun
    return _Round(runs / seconds, (tree_cpu_seconds() - cpu) * 1e3 / runs)


def _fresh(runs: int) -> None:
    call(_callers, runs)


async def _callers(runs: int) -> None:
    left = iter(range(runs))

    async def caller() -> None:
        for _ in left:
            execution = await fumehood.arun_code("pass")
            assert execution.error is None, execution.error

    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))


def _python_pass(runs: int) -> None:
    """Starts processes, so many at once, the cheapest way: no thread and no loop waits for each."""
    living: set[int] = set()

    while runs or living:
        while runs and len(living) < _AT_ONCE:
            living.add(os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], os.environ))
            runs -= 1

        pid, status = os.wait()

        if pid in living:
            assert status == 0, status
            living.remove(pid)


def measure(plan: Plan) -> Iterator[Figure]:
    """Runs a second and CPU time, median of the rounds."""
    runs = plan.repetitions(_RUNS)
    fumehood.run_code("pass")
    call(_callers, _AT_ONCE)
    ours: list[_Round] = []
    reference: list[_Round] = []

    for _ in range(_ROUNDS):
        reference.append(_round(runs, _python_pass))
        ours.append(_round(runs, _fresh))

    name = f"{_AT_ONCE} at once, a fresh sandbox each"
    yield Figure(
        name=f"{name}: runs a second",
        unit="/s",
        ours=median(one.per_second for one in ours),
        samples=_ROUNDS * runs,
        target=_TARGET_RATE,
        at_least=True,
        reference=median(one.per_second for one in reference),
        reference_name=f"{PYTHON_PASS}, as many at once",
    )
    yield Figure(
        name=f"{name}: CPU of all processes, a run",
        unit="ms",
        ours=median(one.cpu_milliseconds for one in ours),
        samples=_ROUNDS * runs,
        target=_TARGET_CPU,
        reference=median(one.cpu_milliseconds for one in reference),
        reference_name=f"{PYTHON_PASS}, as many at once",
        note="without the kernel's own workers",
    )
