"""`fumehood`: picks the command and turns what it raises into a message and an exit code.

Runs in the user's terminal. Data goes to standard output, everything else to standard error; a traceback of
ours is never shown for an error that is in the tree, because its message and hint say more.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

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
from fumehood.cli.parser import EXIT_USAGE, CommandParser
from fumehood.cli.terminal import note
from fumehood.errors import FumehoodError, InvalidArgumentError, StorageError
from fumehood.text import visible_line

# EX_SOFTWARE and EX_IOERR of sysexits.h, so that they are not taken for codes of the user's code.
EXIT_SANDBOX_FAILED = 70
EXIT_FILE_FAILED = 74
EXIT_INTERRUPTED = 130

_COMMANDS = (run, repl, chat, notebook, scan, audit, saved, template, serve, host, mcp, doctor, bench, demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _prepare_streams()
    parser = _parser()
    options = parser.parse_args(arguments)

    if options.command is None:
        parser.print_help()
        return 0

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
        note(_about_file(error))
        return EXIT_FILE_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _prepare_streams() -> None:
    """Let what was closed by whoever started us (`<&-`, a service) lead nowhere; no socket gets its number either.

    What is typed or piped in and is no text comes through, to be refused where it is used.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fumehood",
        description="Run code that nobody has read yet, in a live, isolated sandbox.",
        epilog="`fumehood COMMAND --help` lists the options of a command. To begin: `fumehood doctor`, then "
        "`fumehood repl`. Sandboxes live in the command's own process, or at the server that FUMEHOOD_URL names, with "
        "the token in FUMEHOOD_API_KEY.",
    )
    parser.add_argument("--version", action=_Version, help="print the version, and end")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    for command in _COMMANDS:
        command.add_parser(commands)

    return parser


class _Version(argparse.Action):
    """Prints the version. What is installed is read only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it, and end."""
        print(f"fumehood {metadata.version('fumehood')}, Python {platform.python_version()}")
        parser.exit()


def _about_file(error: OSError) -> str:
    return (
        f"{error.filename!r}: {error.strerror}"
        if error.filename is not None and error.strerror
        else str(error)
    )


def _complain(error: FumehoodError, exit_code: int) -> int:
    # Nobody but us has a log that would say why.
    reason = getattr(error, "reason", "") if isinstance(error, StorageError) else ""
    note(f"{error.message}: {visible_line(reason)}" if reason else str(error))
    return exit_code
