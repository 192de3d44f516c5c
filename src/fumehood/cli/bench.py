"""`fumehood bench`: how fast this machine is at what fumehood does, beside a plain `python -c pass`.

Runs in the user's terminal. With the benchmarks of the repository at hand it hands over to them; an
installed package has a small table of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fumehood.cli.terminal import patience
from fumehood.oneshot import run_code
from fumehood.sandbox import Sandbox

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_FULL = "fumehood_bench"


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "bench",
        help="the figures of this machine",
        description="Measure starts and cells beside `python -c pass`, in one run.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: too few to judge by")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, and return the exit code."""
    if importlib.util.find_spec(_FULL) is not None:
        given = [f"--{name}" for name in ("quick", "json") if getattr(options, name)]
        return subprocess.run([sys.executable, "-m", _FULL, *given], check=False).returncode

    with patience("measuring"):
        figures = _measure(rounds=5 if options.quick else 30)

    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        _print_table(figures)

    return 0


def _measure(rounds: int) -> dict[str, float]:
    with Sandbox() as sandbox:
        sandbox.run_code("y = 0")
        cell = _median_ms(rounds, lambda: sandbox.run_code("y = 1"))

    return {
        "python -c pass": _median_ms(
            rounds, lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)
        ),
        "stateless call in a fresh sandbox": _median_ms(rounds, lambda: run_code("pass")),
        "cell in a live context": cell,
    }


def _median_ms(rounds: int, act: Callable[[], object]) -> float:
    taken: list[float] = []

    for _ in range(rounds):
        started = time.perf_counter()
        act()
        taken.append((time.perf_counter() - started) * 1000)

    return statistics.median(taken)


def _print_table(figures: dict[str, float]) -> None:
    reference = figures["python -c pass"]

    for name, taken_ms in figures.items():
        print(f"{name:<36} {taken_ms:8.2f} ms  {taken_ms / reference:6.2f} x")
