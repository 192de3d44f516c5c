"""`fumehood bench`: measures fumehood on this machine, beside reference programs in the same run.

The benchmarks are a program of their own, in a folder outside of Python's path. This process executes them in its
place, so that it warms up nothing that they measure, and Ctrl-C reaches them.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import fumehood
from fumehood.cli.parser import Command, Option, Options

_PACKAGE = os.path.dirname(os.path.abspath(fumehood.__file__))
# Where a wheel has the benchmarks, and where a checkout has them.
_IN_WHEEL = os.path.join(_PACKAGE, "benchmarks")
_IN_CHECKOUT = os.path.join(_PACKAGE, "..", "..", "benchmarks")


def run(options: Options) -> NoReturn:
    """Replace this process by the benchmarks, which print their figures; does not return."""
    given = [f"--{name}" for name in ("quick", "json", "markdown") if getattr(options, name)]
    groups = [word for group in options.only for word in ("--only", group)]
    words = [sys.executable, "-m", "fumehood_bench", *given, *groups]
    # `-m` finds them in the working directory, here and in the processes that they start.
    os.chdir(_IN_WHEEL if os.path.isdir(_IN_WHEEL) else _IN_CHECKOUT)
    os.execv(sys.executable, words)  # noqa: S606 - a shell has no business here


BENCH = Command(
    "bench",
    run,
    brief="the figures of this machine",
    about="Measure starts, cells, memory and streams beside their references, in one run.",
    params=[
        Option(["--quick"], is_flag=True, help="fewer repetitions: too few to judge by"),
        # The benchmarks themselves refuse an unknown name, with a list.
        Option(
            ["--only"],
            multiple=True,
            metavar="GROUP",
            help="measure this group, such as cell or server; may be repeated",
        ),
        Option(["--json"], is_flag=True, help="print the figures as JSON"),
        Option(["--markdown"], is_flag=True, help="print the table as Markdown"),
    ],
)
