"""`fumehood run`: a file, or standard input, in a fresh sandbox.

Runs in the user's terminal. Output comes as it is written; the exit code is that of the code. With `--output`
the files that it left come back; figures are always saved, under names that are not in use.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fumehood.bounds import MIB
from fumehood.cli.options import check_folder, open_sandbox, raw_option, sandbox_options
from fumehood.cli.outputs import OutputRecord
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord
from fumehood.cli.renewal import kept_alive
from fumehood.cli.terminal import Screen, note, patience
from fumehood.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fumehood.api.artifacts import Saved
    from fumehood.api.sandbox import Sandbox
    from fumehood.values.events import Question
    from fumehood.values.execution import Execution, ExecutionError
    from fumehood.values.results import Result
    from fumehood.values.sandbox import FileInfo, Language

_HOME = "/home/user"
_ARTIFACTS = "/mnt/data"
# What the library takes. More is not read: there are files without an end.
_MAX_CODE_BYTES = 8 * MIB

# EX_CANTCREAT of sysexits.h: the code ended well, and a file that it left could not be brought back.
_LEFT_OUT = 73
# As timeout(1), and as a shell reports SIGINT and SIGKILL.
_EXIT_CODES = {
    "time_limit": 124,
    "cpu_limit": 124,
    "interrupted": 130,
    "out_of_memory": 137,
    "context_died": 137,
}
_EXIT_CODES_HELP = """\
exit code: 0 when the code ended well, 1 when it raised, its own after sys.exit() and os._exit() and of a bash
script; 124 at the time limit, 130 when it was interrupted, 137 when it ran out of memory or was killed; 64 for
a wrong argument, 70 when the sandbox failed, 73 when the code ended well and a file of it could not be brought
back, 74 when a file of this machine could not be read or written
"""


def run(options: Options) -> int:
    """Run it and return the exit code."""
    code = _read(options.path)

    # An empty name is none: the variable that should have held one may have been misspelled.
    if options.output is not None:
        check_folder(options.output, "--output")

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options)

    # Late: `--help` needs none of it.
    from fumehood.api.artifacts import list_tree

    with sandbox, kept_alive(sandbox):
        before = list_tree(sandbox.files, _HOME) if options.output else []
        execution = _execute(sandbox, code, options)
        saved = _bring_back(sandbox, execution, before, options)

    _report(execution, saved, options)
    exit_code = exit_code_of(execution.error)
    return _LEFT_OUT if exit_code == 0 and any(item.skipped for item in saved) else exit_code


def _read(path: str) -> str:
    if not path:
        raise InvalidArgumentError(field="FILE", value=path, allowed="the name of a file, or - for stdin")

    if path == "-":
        content = sys.stdin.buffer.read(_MAX_CODE_BYTES + 1)
    else:
        with open(path, "rb") as file:
            content = file.read(_MAX_CODE_BYTES + 1)

    try:
        if len(content) <= _MAX_CODE_BYTES:
            return content.decode()
    except UnicodeDecodeError:
        pass

    raise InvalidArgumentError(
        field="FILE", value=path, allowed=f"text in UTF-8 of at most {_MAX_CODE_BYTES:,} bytes"
    )


def _execute(sandbox: Sandbox, code: str, options: Options) -> Execution:
    language: Language = "bash" if options.path.endswith((".sh", ".bash")) else "python"
    screen = Screen(raw=options.raw)

    if options.json:
        return sandbox.run_code(code, language=language)

    return sandbox.run_code(
        code,
        language=language,
        on_stdout=screen.out,
        on_stderr=screen.err,
        on_result=lambda result: show_result(screen, result),
        on_error=lambda error: show_error(screen, error),
        # The code itself came from standard input; nothing is left there to answer with.
        on_input=None if options.path == "-" else lambda question: ask(screen, question),
    )


def show_result(screen: Screen, result: Result) -> None:
    """Print what was shown or returned; pictures are saved instead."""
    from fumehood.api.artifacts import picture_of

    if picture_of(result) is None:
        screen.out(f"{result}\n")


def show_error(screen: Screen, error: ExecutionError) -> None:
    """Print an error as Python prints it; a plain exit, of Python or of bash, is none."""
    if error.name == "ExitCode":
        return

    if error.name != "SystemExit":
        screen.err(f"{str(error).rstrip()}\n")

        if error.hint:
            note(error.hint)
    elif error.value and not error.value.removeprefix("-").isdecimal():
        screen.err(f"{error.value}\n")


def ask(screen: Screen, question: Question) -> str | None:
    """Ask the user for a line; None at the end of input."""
    if question.is_password and sys.stdin.isatty():
        screen.err(question)
        return getpass.getpass("")

    screen.out(question)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _bring_back(
    sandbox: Sandbox, execution: Execution, before: Sequence[FileInfo], options: Options
) -> list[Saved]:
    from fumehood.api.artifacts import list_tree, save_files, save_pictures

    into = options.output or "."
    stem = "figure" if options.path == "-" else os.path.splitext(os.path.basename(options.path))[0]
    saved = save_pictures(execution.results, into=into, stem=stem)

    if not options.output:
        return saved

    record = OutputRecord(options.output, overwrite=options.overwrite)
    known = {(entry.path, entry.modified_at, entry.size_bytes) for entry in before}

    with patience("bringing files back"):
        for root in (_ARTIFACTS, _HOME):
            entries = [
                entry
                for entry in list_tree(sandbox.files, root)
                if (entry.path, entry.modified_at, entry.size_bytes) not in known
            ]
            files = save_files(
                sandbox.files, entries, root=root, into=options.output, overwrite=record.may_replace
            )
            record.add(files)
            saved += files

    record.save()
    return saved


def _report(execution: Execution, saved: Sequence[Saved], options: Options) -> None:
    for item in saved:
        if item.skipped:
            note(f"{item.source} was left out: {item.skipped}")
        elif not options.json:
            note(f"{item.source} -> {item.path}")

    if execution.truncated.results:
        note(f"{execution.truncated.results} results were dropped")

    if options.json:
        from fumehood.values.plain_data import as_data

        print(json.dumps({"execution": as_data(execution), "files": as_data(saved)}, indent=2))


def exit_code_of(error: ExecutionError | None) -> int:
    """Return the exit code that tells how code has ended."""
    if error is None:
        return 0

    own = error.exit_code
    return _EXIT_CODES.get(error.kind, 1) if own is None else own


RUN = Command(
    "run",
    run,
    brief="run a file in a fresh sandbox",
    about="Run a file, or standard input (-), in a fresh sandbox that is killed afterwards.",
    epilog=_EXIT_CODES_HELP,
    params=[
        Argument(
            "path",
            metavar="FILE",
            type=PathWord(),
            about="file with Python code, or with bash (*.sh); - for stdin",
        ),
        Option(
            ["--output"],
            type=PathWord(is_folder=True),
            metavar="DIR",
            help="bring files of /mnt/data and new files of the home directory back to DIR",
        ),
        Option(
            ["--overwrite"],
            is_flag=True,
            help="let these replace every file that is already in DIR, not only what an earlier run wrote there",
        ),
        Option(["--json"], is_flag=True, help="print the whole execution as JSON at its end"),
        *sandbox_options(),
        raw_option(),
    ],
)
