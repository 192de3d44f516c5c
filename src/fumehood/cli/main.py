"""`fumehood`: picks the command and turns what it raises into a message and an exit code.

Runs in the user's terminal. Data goes to standard output, everything else to standard error; a traceback of
ours is never shown for an error that is in the tree, because its message and hint say more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fumehood.cli import (
    audit,
    bench,
    chat,
    demo,
    doctor,
    host,
    mcp,
    notebook,
    repl,
    run,
    saved,
    scan,
    serve,
    template,
)
from fumehood.cli.terminal import note
from fumehood.errors import FumehoodError, InvalidArgumentError

# EX_USAGE, EX_SOFTWARE and EX_IOERR of sysexits.h, so that they are not taken for codes of the user's code.
EXIT_USAGE = 64
EXIT_SANDBOX_FAILED = 70
EXIT_FILE_FAILED = 74
EXIT_INTERRUPTED = 130

_COMMANDS = (run, repl, chat, notebook, scan, audit, saved, template, serve, host, mcp, doctor, bench, demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)

    try:
        return int(options.command(options))
    except InvalidArgumentError as error:
        return _complain(error, EXIT_USAGE)
    except FumehoodError as error:
        return _complain(error, EXIT_SANDBOX_FAILED)
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; the interpreter must not try to flush into it
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        note(str(error))
        return EXIT_FILE_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fumehood", description="Run code that nobody has read yet, in a live, isolated sandbox."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    for command in _COMMANDS:
        command.add_parser(commands)

    return parser


def _complain(error: FumehoodError, exit_code: int) -> int:
    note(str(error))
    return exit_code
