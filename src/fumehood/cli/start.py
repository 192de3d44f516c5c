"""The entry point of `fumehood`: gives `fumehood run` to a warm process if it can, else imports the command line.

It recognizes the command `run` only, and does not parse it.
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
