"""`fumehood notebook run`: runs a notebook's cells in a fresh sandbox, and writes the notebook with their outputs.

The file that is read is not changed unless it is named as the output too; the output is a complete notebook, whether or
not cells failed.
"""

from __future__ import annotations

from typing import Any

from fumehood.api.notebooks import Determinism, NotebookOptions, run_in_sandbox
from fumehood.cli.options import check_file, open_sandbox, raw_option, sandbox_options
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord, Verbs
from fumehood.cli.renewal import kept_alive
from fumehood.cli.terminal import Screen, note, patience
from fumehood.notebook.cell_runs import NotebookRun, NotebookStep
from fumehood.notebook.ipynb import notebook_text, read_notebook, read_value, set_parameters
from fumehood.notebook.record_file import write_whole
from fumehood.refusals import naming_arguments

_SHOWN_CODE_CHARACTERS = 60


def run(options: Options) -> int:
    """Run the notebook and return the exit code."""
    parameters: dict[str, Any] = {name: read_value(value) for name, value in options.parameter}
    parameters |= dict(options.raw_parameter)
    # An error in it is reported before a sandbox starts.
    with naming_arguments({"notebook": "IN.ipynb", "parameters": "--parameter"}):
        notebook = read_notebook(options.path)
        set_parameters(notebook, parameters)

    check_file(options.output, "--output")

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options)

    screen = Screen(raw=options.raw)
    how = NotebookOptions(
        stop_on_error=options.stop_on_error,
        transactional=options.transactional,
        determinism=Determinism() if options.deterministic else None,
    )

    with sandbox, kept_alive(sandbox):
        done = run_in_sandbox(sandbox, notebook, how, on_step=lambda step: _show(screen, step))

    write_whole(options.output, notebook_text(done.notebook))
    _report(done, options.output)
    return 1 if done.failed else 0


def _show(screen: Screen, step: NotebookStep) -> None:
    if step.execution is None:
        lines = step.code.strip().splitlines()
        screen.err(f"[{step.number}/{step.total}] {lines[0][:_SHOWN_CODE_CHARACTERS]}\n")
        return

    error = step.execution.error

    if error is not None:
        screen.err(f"[{step.number}/{step.total}] failed: {error.name}: {error.value[:200]}\n")


def _report(done: NotebookRun, path: str) -> None:
    failed = f", {len(done.failed)} failed" if done.failed else ""
    note(f"{done.executed} of {done.total} cells ran{failed} -> {path}")


NOTEBOOK = Verbs(
    "notebook",
    [
        Command(
            "run",
            run,
            brief="run a notebook and write it with its outputs",
            about="Run the code cells of a notebook in a fresh sandbox, and write the notebook with their outputs.",
            epilog="exit code: 0 when all cells ended well, 1 when one failed; 64 for a wrong argument, 70 when the "
            "sandbox failed, 74 when a file could not be read or written",
            params=[
                Argument("path", metavar="IN.ipynb", type=PathWord(), about="the notebook"),
                Option(
                    ["-o", "--output"],
                    required=True,
                    type=PathWord(),
                    metavar="OUT.ipynb",
                    help="where it is written with its outputs",
                ),
                Option(
                    ["-p", "--parameter"],
                    nargs=2,
                    multiple=True,
                    metavar="NAME VALUE",
                    help="a variable that is set behind the cell with the tag `parameters`; may be repeated",
                ),
                Option(
                    ["-r", "--raw-parameter"],
                    nargs=2,
                    multiple=True,
                    metavar="NAME TEXT",
                    help="the same, always text",
                ),
                Option(
                    ["--stop-on-error"],
                    is_flag=True,
                    help="leave the cells after the first that fails unrun",
                ),
                Option(
                    ["--transactional"],
                    is_flag=True,
                    help="undo what a cell that fails has done to variables and files",
                ),
                Option(
                    ["--deterministic"],
                    is_flag=True,
                    help="fix the seeds and the time of day before the first cell",
                ),
                *sandbox_options(),
                raw_option(),
            ],
        )
    ],
    brief="run a notebook in a fresh sandbox",
)
