"""`fumehood scan`: reports dangerous, hidden or unexpected code in files, before any of it runs.

The files are not run; findings go to standard output. The library makes the scan and the verdict; this command only
prints them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fumehood.cli.parser import Argument, Command, OneOf, Option, Options, PathWord
from fumehood.cli.terminal import Screen, counted, note
from fumehood.refusals import naming_arguments
from fumehood.values.plain_data import as_data

if TYPE_CHECKING:
    from fumehood.advice.scan import ScannedFile


def run(options: Options) -> int:
    """Scan the files and return the exit code."""
    from fumehood.advice.scan import scan_files

    with naming_arguments({"allow": "--allow"}):
        scanned = list(scan_files(options.paths, block=options.block, allow=options.allow))

    screen = Screen()

    if options.json:
        screen.out(json.dumps(as_data(scanned), indent=2) + "\n")
    else:
        _show(screen, scanned)

    return int(any(file.findings.blocks for file in scanned))


def _show(screen: Screen, scanned: list[ScannedFile]) -> None:
    for file in scanned:
        for finding in file.findings:
            screen.out(f"{file.name}:{finding}\n    {finding.snippet}\n")

        if file.findings.left_out:
            screen.out(f"{file.name}: and {file.findings.left_out:,} more\n")

    note(counted(sum(len(file.findings) for file in scanned), "finding"))


SCAN = Command(
    "scan",
    run,
    brief="look at code before it runs",
    about="Say what is dangerous, hidden or out of place in Python files, shell scripts and notebooks. "
    "This is advice and no boundary: run unreviewed code in a sandbox all the same.",
    epilog="exit code: 0, or 1 when something was found that --block names, or could not be read; 64 for a wrong "
    "argument, 74 when a file could not be opened",
    params=[
        Argument(
            "paths",
            nargs=-1,
            required=True,
            metavar="FILE...",
            type=PathWord(),
            about="files: .py, .sh, .ipynb and others, as Python",
        ),
        Option(["--json"], is_flag=True, help="print a list of objects"),
        Option(
            ["--block"],
            type=OneOf(("info", "warning", "danger")),
            metavar="SEVERITY",
            help="end with 1 when anything is at least as bad as info, warning or danger",
        ),
        Option(["--allow"], multiple=True, metavar="RULE", help="leave this rule out; may be repeated"),
    ],
)
