"""`fumehood`: picks the command and turns what it raises into a message and an exit code.

Data goes to standard output, everything else to standard error; our own traceback is never shown for a fumehood error,
because its message and hint say more. No command is imported before it is used: the list of commands and `--version`
cost a start of Python and of click.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from fumehood.cli.full_output import EXIT_FILE_FAILED, give_up_output, reason_of_full_output
from fumehood.cli.parser import EXIT_USAGE, LazyGroup, Option, start
from fumehood.cli.terminal import note
from fumehood.errors import FumehoodError, InvalidArgumentError, StorageError
from fumehood.text import visible_line

# EX_SOFTWARE of sysexits.h, so that it is not taken for a code of the user's code.
EXIT_SANDBOX_FAILED = 70
EXIT_INTERRUPTED = 130
PROGRAM = "fumehood"

COMMANDS = {
    "commands": {
        "run": "run a file in a fresh sandbox",
        "repl": "a live prompt",
        "batch": "run many pieces of code from a file of JSON lines",
        "chat": "talk to a model that runs code in a sandbox",
        "notebook": "run a notebook in a fresh sandbox",
        "kernel": "kernels for JupyterLab and VS Code that run in sandboxes",
        "scan": "look at code before it runs",
        "audit": "verify or fetch audit records",
        "template": "what sandboxes start from",
    },
    "commands for a server": {
        "ps": "list the sandboxes of a server",
        "metadata": "show and change the metadata of a sandbox of a server",
        "compare": "compare two moments of a sandbox of a server",
        "logs": "print what ran in a sandbox of a server",
        "exec": "run code in a sandbox of a server",
        "kill": "end sandboxes of a server",
        "records": "sandboxes of a server that have ended: what ran in them, and does it again",
        "cp": "copy files into and out of a sandbox of a server",
        "save": "save a sandbox of a server to a file",
        "load": "make a sandbox of a saved one, at a server",
        "keys": "make, list, change, rotate and revoke the keys of a server",
        "usage": "what the keys of a server have used",
        "console": "print an address that opens the console of a server",
        "share": "hand on a read-only view of a sandbox of a server",
    },
    "commands that serve others": {
        "serve": "sandboxes for others, over HTTP",
        "host": "keep sandboxes in a process of their own, for `fumehood serve --host-socket`",
        "cluster": "many machines behind one server",
        "mcp": "sandboxes as tools of a host that speaks MCP",
        "backup": "write all that a server keeps to a file, while it runs",
        "restore": "restore a server from such a file, into an empty folder",
    },
    "commands about this machine": {
        "doctor": "what this machine allows",
        "bench": "the figures of this machine",
        "demo": "short shows of what a sandbox can do",
        "completion": "print a script with which a shell completes commands and options",
    },
}
# Names that commands had before; they are not listed.
_FORMER = {"label": "metadata"}
# They take the level and the format of their log as settings.
_WITH_SETTINGS = ("serve", "host")
# Modules with other names than their commands.
_MODULES = {
    "save": "saved",
    "load": "saved",
    **dict.fromkeys(("ps", "metadata", "compare", "exec", "kill", "cp"), "remote"),
    "usage": "keys",
    "restore": "backup",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [_FORMER.get(word, word) for word in words[:1]]

    if (instruction := os.environ.get("_FUMEHOOD_COMPLETE")) is not None:
        from fumehood.cli.completion import answer

        return answer(root(), PROGRAM, instruction)

    try:
        _prepare_log(words)
        code = start(root(), PROGRAM, words)
        # Here and not at the end of the interpreter, which could only print that something was ignored.
        sys.stdout.flush()
        return code
    except InvalidArgumentError as error:
        return _complain(error, EXIT_USAGE)
    except FumehoodError as error:
        return _complain(error, EXIT_SANDBOX_FAILED)
    except BrokenPipeError:
        # The reader of our output has left, as `head` does.
        give_up_output()
        return 1
    except OSError as error:
        note(_about_file(error))

        if reason_of_full_output(error):
            give_up_output()

        return EXIT_FILE_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def root() -> LazyGroup:
    """Return the root of the commands."""
    return LazyGroup(
        PROGRAM,
        COMMANDS,
        _load,
        callback=_show_help,
        help="Run code that no one has reviewed, in a live, isolated sandbox.",
        epilog="`fumehood COMMAND --help` lists the options of a command. To begin: `fumehood doctor`, then "
        "`fumehood repl`. Sandboxes live in the command's own process, or at the server that FUMEHOOD_URL names, with "
        "the token in FUMEHOOD_API_KEY.",
        params=[
            Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_version,
                help="print the version, and end",
            )
        ],
    )


def _load(name: str) -> click.Command:
    module = importlib.import_module(f"fumehood.cli.{_MODULES.get(name, name)}")
    command: click.Command = getattr(module, name.upper())
    return command


def _show_help() -> None:
    context = click.get_current_context()

    if context.invoked_subcommand is None:
        print(context.get_help())


def _show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        # Imported late: what is installed is read only when it is asked for.
        import platform
        from importlib import metadata

        print(f"fumehood {metadata.version('fumehood')}, Python {platform.python_version()}")
        context.exit()


def _prepare_log(words: Sequence[str]) -> None:
    """Write the log of a command to standard error where the environment asks for it; servers have settings for it."""
    level, form = os.environ.get("FUMEHOOD_LOG_LEVEL"), os.environ.get("FUMEHOOD_LOG_FORMAT", "console")

    if level is None or (words and words[0] in _WITH_SETTINGS):
        return

    # Imported late: few ask for it.
    from fumehood.log.setup import configure
    from fumehood.refusals import naming_arguments
    from fumehood.setting_fields import check_log_format, check_log_level

    with naming_arguments({"log_level": "FUMEHOOD_LOG_LEVEL", "log_format": "FUMEHOOD_LOG_FORMAT"}):
        check_log_level(level)
        check_log_format(form)

    configure(level, form)


def _prepare_streams() -> None:
    """Open standard streams that the parent closed (`<&-`, a service) on /dev/null, so no socket gets their numbers.

    Input that is not text is passed on unchanged; the code that uses it refuses it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _about_file(error: OSError) -> str:
    if error.filename is not None and error.strerror:
        return f"{error.filename!r}: {error.strerror}"

    return reason_of_full_output(error) or str(error)


def _complain(error: FumehoodError, exit_code: int) -> int:
    # Without a server there is no log with the reason.
    # Imported late, as all that only an error needs.
    from fumehood.cli.hints import error_text

    reason = getattr(error, "reason", "") if isinstance(error, StorageError) else ""
    note(f"{error.message}: {visible_line(reason)}" if reason else error_text(error))
    return exit_code
