"""`fumehood run`: a file, or standard input, in a fresh sandbox.

Output comes as it is written; the exit code is that of the code. With `--output` the files that it left come back;
figures are always saved, under names that are not in use.
"""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fumehood.cli.options import check_folder, language_option, open_sandbox, raw_option, sandbox_options
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord, WrongWordError
from fumehood.cli.program import Program, next_piece, read_program
from fumehood.cli.renewal import kept_alive
from fumehood.cli.terminal import Screen, note, patience, waiting_for
from fumehood.cli.warm import is_wanted, start_daemon
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox
    from fumehood.api.transfers import Saved
    from fumehood.values.events import Question
    from fumehood.values.execution import Execution, ExecutionError
    from fumehood.values.results import Result
    from fumehood.values.sandbox import FileInfo


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
# In place of the library's, which names its arguments.
LIMIT_HINTS = {
    "out_of_memory": "`--memory 2G` allows more; the default is 1G",
    "time_limit": "`--timeout 300` allows more; the default is 30 seconds",
}
_MISSING = re.compile(r"No module named '(\w{1,100})'", re.ASCII)
_WAY_OUT = (
    "`--network HOST` lets it reach a host and may be repeated; `--network internet` all that is public"
)
_HEADING = "Traceback (most recent call last)"
_EXIT_CODES_HELP = """\
exit code: 0 when the code ended well, 1 when it raised, its own after sys.exit() and os._exit() and of a bash
script; 124 at the time limit, 130 when it was interrupted, 137 when it ran out of memory or was killed; 64 for
a wrong argument, 70 when the sandbox failed, 73 when the code ended well and a file of it could not be brought
back, 74 when a file of this machine could not be read or written, or standard output has no room
"""


def run(options: Options) -> int:
    """Run the program and return the exit code."""
    if options.stop_daemon:
        return _stop_daemon()

    is_fed = not sys.stdin.isatty()
    program = read_program(
        options.words, options.code, options.module, is_fed=is_fed, language=options.language
    )

    # An empty name is none: the variable that should have held one may have been misspelled.
    if options.output is not None:
        check_folder(options.output, "--output")

    # Imported late: `--help` needs none of it.
    from fumehood.assemble import read_settings

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options, program.preload(read_settings().preload))

    with sandbox, kept_alive(sandbox):
        if program.file:
            sandbox.files.write(program.file, program.cells[0])

        # Imported late: the processes of the template start before.
        from fumehood.api.artifacts import list_tree

        before = list_tree(sandbox.files, HOME_PATH) if options.output else []
        executions = _execute(sandbox, program, options)
        saved = _bring_back(sandbox, executions, before, options, program.stem)

        if options.screenshot:
            # Before the file is opened: a sandbox without a display leaves none.
            picture = sandbox.screenshot()

            with open(options.screenshot, "wb") as file:
                file.write(picture)

    _report(executions, saved, options, is_notebook=len(program.cells) != 1)
    exit_code = exit_code_of(executions[-1].error) if len(executions) > 0 else 0

    # Every run starts the warm process, also one that it cannot serve: it may serve the next one.
    if not options.no_daemon and is_wanted(()):
        start_daemon()

    return _LEFT_OUT if exit_code == 0 and any(item.skipped for item in saved) else exit_code


def _stop_daemon() -> int:
    # Imported late: few ask for it.
    from fumehood.cli.warm_processes import stop_warm_processes

    with patience("ending the processes that keep sandboxes ready"):
        stopped = stop_warm_processes()

    for process in stopped:
        note(f"process {process}, which kept sandboxes ready, has ended")

    if not stopped:
        note("no process keeps sandboxes ready: nothing was to be ended")

    return 0


def _execute(sandbox: Sandbox, program: Program, options: Options) -> list[Execution]:
    """Run the pieces in order, up to the first failure that stops the run."""
    # Imported late: `--help` needs none of it.
    from fumehood.api.silent_runs import run_silently

    screen = Screen(raw=options.raw)
    callbacks: dict[str, Any] = {
        "on_stdout": screen.out,
        "on_stderr": screen.err,
        "on_result": lambda result: show_result(screen, result) if program.shows(result) else None,
        "on_error": lambda error: show_program_error(screen, error, program),
        # If the code itself came from standard input, no input is left for questions.
        "on_input": (lambda question: ask(screen, question)) if program.has_stdin else None,
    }
    # With JSON nothing else is printed, and so nothing asked.
    callbacks = {} if options.json else callbacks
    executions: list[Execution] = []

    if program.opening and (failure := run_silently(sandbox, program.opening).error) is not None:
        note(f"the program has no arguments and no name, as its server is older: {failure.name}")
    elif program.is_fed:
        callbacks["on_input"] = lambda _: next_piece()

    for at, code in enumerate(program.cells):
        execution = sandbox.run_code(code, language=program.language, **callbacks)
        executions.append(execution)

        if execution.error is not None and at not in program.may_raise:
            break

    return executions


def hints_for(error: ExecutionError) -> Mapping[str, str]:
    """Return the hints that follow an error of `fumehood run`, by the kind of error."""
    # Imported late: most programs raise nothing.
    from fumehood.values.failure_signs import is_unreached

    found = _MISSING.fullmatch(error.value) if error.name == "ModuleNotFoundError" else None

    if error.kind == "exception" and is_unreached(error.name, error.value):
        return {error.kind: _WAY_OUT}

    if found is None:
        return LIMIT_HINTS

    return {error.kind: _way_to_module(found[1])}


def _way_to_module(name: str) -> str:
    return (
        f"a file of yours comes in by `--file {name}.py` (a folder by `--file {name}`), a package by `pip install "
        f"{name}` beside fumehood or, for this run, by `--network pip` and `%pip install {name}` in the code"
    )


def show_result(screen: Screen, result: Result) -> None:
    """Print a displayed or returned result; pictures are saved to files instead."""
    from fumehood.api.artifacts import picture_of

    if picture_of(result) is None:
        screen.result(f"{result}\n")


def show_program_error(screen: Screen, error: ExecutionError, program: Program) -> None:
    """Print an error of a program; for a missing module one line, as `python -m` prints it."""
    # Without a frame it was not raised by code of the module.
    if program.module and error.name == "ImportError" and _HEADING not in error.traceback:
        screen.note(error.value)
        name = program.module.partition(".")[0]

        if error.value.endswith((f"No module named {name}", f"No module named '{name}')")):
            screen.note(_way_to_module(name))
    elif error.kind == "context_died" and error.exit_code == 0:
        # By `os._exit(0)`: a program that ends itself well has lost nothing.
        return
    else:
        show_error(screen, error, hints_for(error))


def show_error(screen: Screen, error: ExecutionError, hints: Mapping[str, str] | None = None) -> None:
    """Print an error in the format of its language; a plain exit is not printed.

    Args:
        screen: The stream to which it is printed.
        error: The error.
        hints: Hints by the kind of error in the words of the command line, in place of the error's own.
    """
    if error.name == "ExitCode":
        return

    if error.name != "SystemExit":
        screen.traceback(f"{str(error).rstrip()}\n")

        if hint := (hints or {}).get(error.kind) or error.hint:
            screen.note(hint)
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
    sandbox: Sandbox,
    executions: Sequence[Execution],
    before: Sequence[FileInfo],
    options: Options,
    stem: str,
) -> list[Saved]:
    from fumehood.api.artifacts import list_tree, save_files, save_pictures

    results = [result for execution in executions for result in execution.results]

    if not options.output:
        return save_pictures(results, into=".", stem=stem)

    # Imported late, as is what follows: before the sandbox starts, each import delays it.
    from fumehood.cli.outputs import OutputRecord

    record = OutputRecord(options.output, overwrite=options.overwrite)
    saved = save_pictures(results, into=options.output, stem=stem, may_replace=record.may_replace)
    record.add(saved)

    found = {root: changed_since(before, list_tree(sandbox.files, root)) for root in (DATA_PATH, HOME_PATH)}
    total = sum(entry.size_bytes for entries in found.values() for entry in entries if entry.type == "file")

    with waiting_for("bringing files back", total) as step:
        for root, entries in found.items():
            files = save_files(
                sandbox.files,
                entries,
                root=root,
                into=options.output,
                overwrite=record.may_replace,
                on_bytes=step,
            )
            record.add(files)
            saved += files

    record.save()
    return saved


def changed_since(before: Sequence[FileInfo], now: Sequence[FileInfo]) -> list[FileInfo]:
    """Return the files that are new or changed since the earlier listing."""
    known = {(entry.path, entry.modified_at, entry.size_bytes) for entry in before}
    return [entry for entry in now if (entry.path, entry.modified_at, entry.size_bytes) not in known]


def _report(
    executions: Sequence[Execution], saved: Sequence[Saved], options: Options, *, is_notebook: bool
) -> None:
    from fumehood.cli.reports import report

    note_dropped(executions)
    report(saved, data_of(executions, is_notebook=is_notebook) if options.json else None)


def note_dropped(executions: Sequence[Execution], say: Callable[[str], None] = note) -> None:
    """Print how many results were too large to be kept."""
    if dropped := sum(execution.truncated.results for execution in executions):
        say(f"{dropped} results were dropped")


def data_of(executions: Sequence[Execution], *, is_notebook: bool) -> dict[str, object]:
    """Return the executions as plain data, in the form that `--json` prints."""
    from fumehood.values.plain_data import as_data

    return {"executions": as_data(executions)} if is_notebook else {"execution": as_data(executions[0])}


def exit_code_of(error: ExecutionError | None) -> int:
    """Return the exit code for an error of the code; 0 without one."""
    if error is None:
        return 0

    own = error.exit_code
    return _EXIT_CODES.get(error.kind, 1) if own is None else own


class _RunCommand(Command):
    """Takes options before its file and directly after it; what follows belongs to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words: options, the file, options, and the arguments of the program as they are."""
        own, words, is_over = self._own_words(args)
        has_code = any(word[:2] in ("-c", "-m") for word in own)

        if words and not is_over and not has_code:
            path, *behind = words
            more, arguments, _ = self._own_words(behind)
            own, words = own + more, [path, *arguments]

        is_stop = "--stop-daemon" in own

        if is_stop and (words or has_code):
            raise WrongWordError("--stop-daemon runs nothing: give it no FILE and no code", ctx)

        left = super().parse_args(ctx, [*own, "--", *words] if words else own)

        if not (is_stop or has_code or words or ctx.resilient_parsing):
            raise WrongWordError("the following arguments are required: FILE", ctx)

        return left

    def _own_words(self, args: list[str]) -> tuple[list[str], list[str], bool]:
        """Split words after their leading options; also return whether `--` or a module has ended all options."""
        valued = {name for one in self.params if not getattr(one, "is_flag", False) for name in one.opts}
        own: list[str] = []
        words = list(args)

        while words and words[0].startswith("-") and words[0] != "-":
            if words[0] == "--":
                return own, words[1:], True

            taken = 2 if words[0] in valued else 1
            is_module = words[0][:2] == "-m"
            own, words = own + words[:taken], words[taken:]

            if is_module:
                return own, words, True

        return own, words, False


RUN = _RunCommand(
    "run",
    run,
    brief="run a file in a fresh sandbox",
    about="Run a file, a notebook, a module, a piece of code, or standard input (-) in a fresh sandbox that is killed "
    "afterwards. Options stand before FILE or directly after it: from the first ARG on, behind -m MODULE, or behind "
    "--, all words are the program's.",
    epilog=_EXIT_CODES_HELP,
    params=[
        Argument(
            "words",
            nargs=-1,
            metavar="FILE [ARG]...",
            type=PathWord(),
            about="a file with Python code, a notebook (*.ipynb), or a file in another language, such as bash (*.sh), "
            "JavaScript (*.js) or TypeScript (*.ts); - for stdin; and its arguments",
        ),
        Option(["-c", "code"], metavar="CODE", help="run this code instead of a file"),
        language_option(),
        Option(["-m", "module"], metavar="MODULE", help="run a module, as `python -m` does"),
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
        Option(
            ["--screenshot"],
            type=PathWord(),
            metavar="FILE",
            help="write what the display shows at the end to FILE, as PNG (templates built with --display)",
        ),
        Option(["--json"], is_flag=True, help="print the whole execution as JSON at its end"),
        Option(
            ["--no-daemon"],
            is_flag=True,
            help="start a sandbox here, and leave no process behind that keeps others ready for the next run",
        ),
        Option(
            ["--stop-daemon"],
            is_flag=True,
            help="end the processes that keep sandboxes ready, with what runs in them, and run nothing",
        ),
        *sandbox_options(),
        raw_option(),
    ],
)
