"""Where `fumehood` begins: a run that a warm process takes is over before the command line is imported.

Runs in the user's terminal. It knows one word, `run`, and decides nothing about it.
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
