"""A notebook run in a sandbox, cell by cell, as `nbconvert --execute` does: what each cell did replaces its outputs.

Runs in the host process, over the public sandbox only. The notebook may be anybody's: its code runs in the sandbox and
nowhere else, and its outputs are data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fumehood.execution import Execution
from fumehood.facade.portal import Turn
from fumehood.notebook.determinism import Determinism
from fumehood.notebook.ipynb import facts_of, outputs_of, times_of
from fumehood.notebook.reading import NotebookSource, read_notebook, set_parameters, source_of, tags_of

if TYPE_CHECKING:
    from fumehood.facade.aio import AsyncSandbox
    from fumehood.facade.sandbox import Sandbox

_SKIP_TAG = "skip-execution"
# Such a cell is expected to fail, and the next one runs.
_RAISES_TAG = "raises-exception"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookOptions:
    """How a notebook is run.

    Attributes:
        parameters: Variables that are set before, behind the cell with the tag `parameters`.
        stop_on_error: Leave the cells after the first that fails unrun.
        transactional: Undo what a cell that fails has done to variables and files.
        determinism: What is fixed before the first cell; None: nothing.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    stop_on_error: bool = False
    transactional: bool = False
    determinism: Determinism | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookStep:
    """A cell that is about to run, or has run.

    Attributes:
        number: Which of the code cells that are run, from 1.
        total: How many they are.
        code: Its code.
        execution: What it did; None before.
    """

    number: int
    total: int
    code: str
    execution: Execution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """A notebook that was run.

    Attributes:
        notebook: It, with the outputs of this run, as JSON holds it.
        executed: How many cells ran.
        total: How many there are to run.
        failed: The numbers of those that failed although they were not expected to.
    """

    notebook: dict[str, Any]
    executed: int
    total: int
    failed: tuple[int, ...] = ()


async def run_notebook(
    sandbox: AsyncSandbox,
    source: NotebookSource,
    options: NotebookOptions | None = None,
    *,
    on_step: Callable[[NotebookStep], Awaitable[object]] | None = None,
) -> NotebookRun:
    """Run the code cells of a notebook in the default context of a sandbox.

    Args:
        sandbox: Where.
        source: A path, or the notebook itself.
        options: How.
        on_step: Called before and after each cell.

    Raises:
        InvalidArgumentError: It is no notebook that can be run here.
    """
    options = options or NotebookOptions()
    # In threads: what is large would hold up what else runs on this loop.
    notebook = await asyncio.to_thread(read_notebook, source)
    set_parameters(notebook, options.parameters)
    cells = [cell for cell in notebook["cells"] if _is_run(cell)]
    _forget_outputs(notebook)

    if options.determinism is not None:
        await options.determinism.apply(sandbox)

    executed = 0
    failed: list[int] = []

    for number, cell in enumerate(cells, 1):
        code = source_of(cell)
        await _tell(on_step, NotebookStep(number=number, total=len(cells), code=code))
        execution = await sandbox.run_code(code, transactional=options.transactional)
        executed = number

        if execution.state_lost and options.determinism is not None:
            # With the state what was fixed in it has gone.
            await options.determinism.apply(sandbox)

        await asyncio.to_thread(_write_outputs, cell, execution)
        await _tell(on_step, NotebookStep(number=number, total=len(cells), code=code, execution=execution))

        if execution.error is not None and _RAISES_TAG not in tags_of(cell):
            failed.append(number)

            if options.stop_on_error:
                break

    return NotebookRun(notebook=notebook, executed=executed, total=len(cells), failed=tuple(failed))


def run_in_sandbox(
    sandbox: Sandbox,
    source: NotebookSource,
    options: NotebookOptions | None = None,
    *,
    on_step: Callable[[NotebookStep], object] | None = None,
) -> NotebookRun:
    """Do what `run_notebook` does, from a thread; `on_step` is called in it."""
    turn = Turn()
    return turn.call(run_notebook, sandbox._twin, source, options, on_step=turn.relay(on_step, "on_step"))


def _is_run(cell: Mapping[str, Any]) -> bool:
    return cell["cell_type"] == "code" and bool(source_of(cell).strip()) and _SKIP_TAG not in tags_of(cell)


def _forget_outputs(notebook: dict[str, Any]) -> None:
    """Takes away what an earlier run has left: what is there afterwards is of this run."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
            cell["execution_count"] = None


def _write_outputs(cell: dict[str, Any], execution: Execution) -> None:
    metadata = cell.get("metadata")
    cell["metadata"] = metadata = metadata if isinstance(metadata, dict) else {}
    metadata["execution"] = times_of(execution)
    metadata["fumehood"] = facts_of(execution)
    cell["outputs"] = outputs_of(execution)
    cell["execution_count"] = execution.execution_count


async def _tell(on_step: Callable[[NotebookStep], Awaitable[object]] | None, step: NotebookStep) -> None:
    if on_step is not None:
        await on_step(step)
