"""Many short lines printed by a cell, beside a plain Python that prints the same into a pipe.

Measured twice: on the machine as it is, and beside four processes that compute without an end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fumehood import Limits, Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import percentile

_LINES = 200_000
_CODE = "for number in range({lines}): print(number)"
_ROUNDS = 5
_KEPT_BYTES = 4 << 20
_BUSY_PROCESSES = 4
_QUIET_TARGET = 3.0
_BUSY_TARGET = 5.0


def measure(plan: Plan) -> Iterator[Figure]:
    """Seconds for all lines, on both machines."""
    yield _figure(plan, "", _QUIET_TARGET)

    with _busy():
        yield _figure(plan, f", beside {_BUSY_PROCESSES} busy processes", _BUSY_TARGET)


def _figure(plan: Plan, where: str, target: float) -> Figure:
    lines = _LINES // 10 if plan.quick else _LINES
    ours, plain = [], []

    with Sandbox(limits=Limits(stdout_bytes=_KEPT_BYTES)) as sandbox:
        sandbox.run_code("1")

        for _ in range(_ROUNDS):
            plain.append(_print_plainly(lines))
            ours.append(_print_inside(sandbox, lines))

    return Figure(
        name=f"{lines:,} lines printed{where}",
        unit="s",
        ours=percentile(ours, 50),
        samples=_ROUNDS,
        target=target,
        reference=percentile(plain, 50),
        reference_name="python, into a pipe",
        note="all lines in their order",
    )


def _print_inside(sandbox: Sandbox, lines: int) -> float:
    start = time.perf_counter()
    execution = sandbox.run_code(_CODE.format(lines=lines), timeout=600)
    seconds = time.perf_counter() - start
    expected = "".join(f"{number}\n" for number in range(lines))
    assert "".join(execution.logs.stdout) == expected, execution.error or "lines are missing"
    return seconds


def _print_plainly(lines: int) -> float:
    """The loop alone, without the start of the interpreter."""
    code = f"import sys, time; start = time.perf_counter()\n{_CODE.format(lines=lines)}\n"
    code += "sys.stdout.flush(); print(time.perf_counter() - start, file=sys.stderr)"
    # With this variable each print would be a system call, and the reference ten times slower.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return float(done.stderr)


@contextmanager
def _busy() -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
