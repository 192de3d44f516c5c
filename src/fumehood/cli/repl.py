"""`fumehood repl`: a live prompt into one sandbox.

Runs in the user's terminal. What is typed is sent when it is complete, the state stays from line to line,
figures are saved and named, Ctrl-C interrupts what runs, and Ctrl-D ends the sandbox.
"""

from __future__ import annotations

import ast
import codeop
import sys
import warnings

from fumehood.api.artifacts import save_pictures
from fumehood.api.sandbox import Sandbox
from fumehood.cli.options import check_folder, open_sandbox, raw_option, sandbox_options
from fumehood.cli.parser import Command, Option, Options, PathWord
from fumehood.cli.renewal import kept_alive
from fumehood.cli.run import ask, exit_code_of, show_error, show_result
from fumehood.cli.terminal import Screen, note, patience
from fumehood.errors import InvalidArgumentError
from fumehood.values.execution import ExecutionError

# Lines of IPython that are no Python: magics, shell commands, questions.
_SPECIAL = ("%", "!", "?")


def run(options: Options) -> int:
    """Read, run and print until the end of input; return the exit code."""
    check_folder(options.output, "--output")
    enable_line_editing()

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options)

    with sandbox, kept_alive(sandbox):
        info = sandbox.get_info()
        note(f"sandbox {info.id}, isolation {info.isolation.level}; exit() or Ctrl-D ends it")

        while True:
            try:
                code = read_block()
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            except EOFError:
                print(file=sys.stderr)
                return 0

            error = _run_block(sandbox, code, options) if code.strip() else None

            # As at Python's own prompt: `exit()` leaves it.
            if error is not None and error.name == "SystemExit":
                return exit_code_of(error)


def read_block() -> str:
    """Read lines until they are a complete piece of code.

    Raises:
        EOFError: The input has ended.
    """
    lines = [input(">>> ")]

    while not is_complete("\n".join(lines)):
        lines.append(input("... "))

    return "\n".join(lines)


def is_complete(text: str) -> bool:
    """Tell whether what was typed can be run, or lines are still to come; an empty line ends a block."""
    if text.lstrip().startswith(_SPECIAL) or text.rstrip().endswith("?"):
        return not text.startswith("%%") or text.endswith("\n")

    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiler(text, "<input>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        # It is wrong, and the sandbox's own message says how.
        return True


def _run_block(sandbox: Sandbox, code: str, options: Options) -> ExecutionError | None:
    screen = Screen(raw=options.raw)

    try:
        execution = sandbox.run_code(
            code,
            on_stdout=screen.out,
            on_stderr=screen.err,
            on_result=lambda result: show_result(screen, result),
            on_error=lambda error: show_error(screen, error),
            on_input=lambda question: ask(screen, question),
        )
    except KeyboardInterrupt:
        note("interrupted")
        return None
    except InvalidArgumentError as error:
        # No code, such as bytes that are no text: nothing has run, and what was there before still is.
        note(str(error))
        return None

    for item in save_pictures(execution.results, into=options.output, stem="figure"):
        note(f"{item.source} -> {item.path}")

    if execution.state_lost:
        note("the context was replaced: variables are gone, files are kept")

    return execution.error


def enable_line_editing() -> None:
    """Let the arrow keys work in `input`, where this Python can."""
    try:
        import readline  # noqa: F401 - importing it is what enables it
    except ImportError:
        return


REPL = Command(
    "repl",
    run,
    brief="a live prompt",
    about="A live prompt into one sandbox. Ctrl-C interrupts what runs, Ctrl-D ends the sandbox.",
    params=[
        Option(
            ["--output"],
            type=PathWord(is_folder=True),
            metavar="DIR",
            default=".",
            help="where figures are saved (default: the current directory)",
        ),
        *sandbox_options(),
        raw_option(),
    ],
)
