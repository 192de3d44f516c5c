"""`fumehood demo`: short shows of what a sandbox can do.

Runs in the user's terminal. It picks the show and its pace; what is shown is in `fumehood.demos`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Where somebody watches: long enough to read a line.
_PAUSE_SECONDS = 1.5


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command."""
    parser = commands.add_parser("demo", help="short shows of what a sandbox can do")
    shows = parser.add_subparsers(title="shows", required=True, metavar="SHOW")
    show = shows.add_parser(
        "time-travel",
        help="ways tried from one point, a transaction undone, a crash survived, forks side by side",
        description="Load data, try three ways to clean it from one point and keep the best, undo a transaction, "
        "bring back a context that has crashed, and go on in three forks at once.",
    )
    show.add_argument("--fast", action="store_true", help="without pauses to read")
    show.set_defaults(command=_time_travel)


def _time_travel(options: argparse.Namespace) -> int:
    """Run the show and return the exit code."""
    # Late: no other command needs it.
    from fumehood.demos.time_travel import TimeTravelShow

    is_watched = sys.stdout.isatty() and not options.fast
    TimeTravelShow(lambda line: print(line, flush=True), _PAUSE_SECONDS if is_watched else 0.0).run()
    return 0
