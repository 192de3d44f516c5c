"""`fumehood bench`: how fast this machine is at what fumehood does, beside the references in the same run.

Runs in the user's terminal, and only hands over to the benchmarks, which are a package and a program of their own, and
take the place of this process: what they measure must not have been warmed up by it, and Ctrl-C is theirs.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser(
        "bench",
        help="the figures of this machine",
        description="Measure starts, cells, memory and streams beside their references, in one run.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: too few to judge by")
    # Which there are, is known where they are measured: another name is refused there, with a list.
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GROUP",
        help="measure this group, such as cell or server; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> NoReturn:
    """Measure, print, and end with the exit code: this does not return."""
    given = [f"--{name}" for name in ("quick", "json", "markdown") if getattr(options, name)]
    groups = [word for group in options.only for word in ("--only", group)]
    words = [sys.executable, "-m", "fumehood_bench", *given, *groups]
    os.execv(sys.executable, words)  # noqa: S606 - a shell has no business here
