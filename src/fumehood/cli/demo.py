"""`fumehood demo`: short shows of what a sandbox can do.

It picks the show and its pace; what is shown is in `fumehood.demos`.
"""

from __future__ import annotations

import sys

from fumehood.cli.parser import Command, Option, Options, Verbs

# On a terminal: long enough to read a line.
_PAUSE_SECONDS = 1.5


def _time_travel(options: Options) -> int:
    """Run the show and return the exit code."""
    # Imported late: no other command needs it.
    from fumehood.demos.time_travel import TimeTravelShow

    is_watched = sys.stdout.isatty() and not options.fast
    TimeTravelShow(lambda line: print(line, flush=True), _PAUSE_SECONDS if is_watched else 0.0).run()
    return 0


DEMO = Verbs(
    "demo",
    [
        Command(
            "time-travel",
            _time_travel,
            brief="ways tried from one point, a transaction undone, a crash survived, forks side by side",
            about="Load data, try three ways to clean it from one point and keep the best, undo a transaction, "
            "bring back a context that has crashed, and go on in three forks at once.",
            params=[Option(["--fast"], is_flag=True, help="without pauses to read")],
        )
    ],
    brief="short shows of what a sandbox can do",
    default="time-travel",
)
