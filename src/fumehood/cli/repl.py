"""`fumehood repl`: a live prompt into one sandbox.

Code is sent when it is complete, the state stays from line to line, figures are saved and named, Ctrl-C interrupts what
runs, and Ctrl-D ends the sandbox. Checkpoints and forks are words of the prompt's own.
"""

from __future__ import annotations

import ast
import codeop
import sys
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fumehood.api.artifacts import save_pictures
from fumehood.api.sandbox import Sandbox
from fumehood.cli.hints import error_text
from fumehood.cli.line_editing import line_editing
from fumehood.cli.options import check_folder, open_sandbox, raw_option, sandbox_options
from fumehood.cli.outputs import state_folder
from fumehood.cli.parser import Command, Option, Options, PathWord
from fumehood.cli.renewal import kept_alive
from fumehood.cli.run import ask, exit_code_of, hints_for, show_error, show_result
from fumehood.cli.terminal import Screen, note, patience
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.text import visible_line
from fumehood.values.execution import ExecutionError

if TYPE_CHECKING:
    from fumehood.values.questions import CodeCompletion

# Lines of IPython that are no Python: magics, shell commands, questions.
_SPECIAL = ("%", "!", "?")


def run(options: Options) -> int:
    """Read, run and print until the end of input; return the exit code."""
    check_folder(options.output, "--output")

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options)

    with _Prompt(sandbox, options) as prompt:
        info = sandbox.get_info()
        note(f"sandbox {info.id}, isolation {info.isolation.level}; exit() or Ctrl-D ends it")

        with line_editing(str(state_folder() / "repl_history"), prompt.lines_before, prompt.names_at):
            return prompt.read_and_run()


class _Prompt:
    """The sandbox at the prompt, and those that it was forked from.

    Args:
        sandbox: The first sandbox; it ends with the prompt.
        options: The options of the command.
    """

    def __init__(self, sandbox: Sandbox, options: Options) -> None:
        self._options = options
        self._lines: list[str] = []
        self._sandboxes: list[tuple[Sandbox, ExitStack]] = []
        self._checkpoints = 0
        self._enter(sandbox)

    def __enter__(self) -> _Prompt:
        return self

    def __exit__(self, *_: object) -> None:
        while self._sandboxes:
            self._sandboxes.pop()[1].close()

    def read_and_run(self) -> int:
        """Read, run and print; return the exit code."""
        while True:
            try:
                code = self._read()
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            except EOFError:
                print(file=sys.stderr)

                if self._leave():
                    return 0

                continue

            error = self._run(code) if code.strip() else None

            # As at Python's own prompt: `exit()` leaves it.
            if error is not None and error.name == "SystemExit" and self._leave():
                return exit_code_of(error)

    def lines_before(self) -> str:
        """Return the earlier lines of the piece of code that is being edited."""
        return "".join(f"{line}\n" for line in self._lines)

    def names_at(self, code: str, cursor: int) -> CodeCompletion:
        """Return the sandbox's completions at the cursor."""
        # Imported late: only Tab needs it.
        from fumehood.api.handle import default_backend
        from fumehood.portal import call
        from fumehood.values.questions import CodeCompletion, CompleteCode

        found = call(default_backend().ask, self._sandbox.id, CompleteCode(code=code, cursor=cursor))
        assert isinstance(found, CodeCompletion)
        return found

    @property
    def _sandbox(self) -> Sandbox:
        return self._sandboxes[-1][0]

    def _enter(self, sandbox: Sandbox) -> None:
        stack = ExitStack()
        stack.enter_context(sandbox)
        stack.enter_context(kept_alive(sandbox))
        self._sandboxes.append((sandbox, stack))

    def _leave(self) -> bool:
        """End the current sandbox; return True if it was the last, else continue in the one it was forked from."""
        self._sandboxes.pop()[1].close()

        if not self._sandboxes:
            return True

        note(f"the fork has ended; back in sandbox {self._sandbox.id}")
        return False

    def _read(self) -> str:
        # As Python's own: what comes from a pipe is not asked for.
        first, next_ = (">>> ", "... ") if sys.stdin.isatty() else ("", "")
        self._lines = [input(first)]

        while not is_complete("\n".join(self._lines)):
            self._lines.append(input(next_))

        code, self._lines = "\n".join(self._lines), []
        return code

    def _run(self, code: str) -> ExecutionError | None:
        verb, *words = code.split()
        own = {"%checkpoint": self._keep, "%rollback": self._go_back, "%fork": self._fork}

        if verb not in own:
            return _run_block(self._sandbox, code, self._options)

        if len(words) > (0 if verb == "%fork" else 1):
            note(f"{verb} takes {'no words' if verb == '%fork' else 'a name and nothing else'}")
            return None

        try:
            own[verb](*words)
        except FumehoodError as error:
            note(error_text(error))

        return None

    def _keep(self, name: str = "") -> None:
        self._checkpoints += 1
        kept = self._sandbox.checkpoint(name or f"c{self._checkpoints}")
        left = f"; without {visible_line(', '.join(kept.left_behind))}" if kept.left_behind else ""
        note(f"kept as {kept.name}: `%rollback {kept.name}` goes back to it{left}")

    def _go_back(self, name: str = "") -> None:
        if not name:
            known = self._sandbox.list_checkpoints()

            if not known:
                note("there is no checkpoint: `%checkpoint` makes one")
                return

            name = known[-1].id

        back = self._sandbox.rollback(name)
        note(f"back at {back.name or back.id}: variables and files are what they were")

    def _fork(self) -> None:
        fork = self._sandbox.fork()
        self._enter(fork)
        note(f"in a fork, sandbox {fork.id}; exit() or Ctrl-D goes back to where it was made")


def is_complete(text: str) -> bool:
    """Return whether the typed code is complete and can be run; an empty line ends a block."""
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
            on_error=lambda error: show_error(screen, error, hints_for(error)),
            on_input=lambda question: ask(screen, question),
        )
    except KeyboardInterrupt:
        note("interrupted")
        return None
    except InvalidArgumentError as error:
        # No code, such as bytes that are no text: nothing has run, and what was there before still is.
        note(error_text(error))
        return None

    for item in save_pictures(execution.results, into=options.output, stem="figure"):
        note(f"{item.source} -> {item.path}")

    if execution.state_lost:
        note("the context was replaced: variables are gone, files are kept")

    return execution.error


REPL = Command(
    "repl",
    run,
    brief="a live prompt",
    about="A live prompt into one sandbox. Tab completes, NAME? explains, %checkpoint [NAME] keeps the state, "
    "%rollback [NAME] goes back to it, %fork goes on in a copy. Ctrl-C interrupts what runs, Ctrl-D ends the sandbox.",
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
