"""The entry point of `fumehood`: a run that a warm process serves ends before the command line is imported.

Runs in the user's terminal. It recognizes the command `run` only, and does not parse it.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:]

    if words[:1] == ["run"]:
        from fumehood.cli.warm import run_warm

        code = run_warm(words[1:])

        if code is not None:
            return code

    from fumehood.cli.main import main as run_command

    return run_command(words)
