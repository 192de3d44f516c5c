"""Runs the code cells of a notebook one after another; the output of each replaces its outputs, as in `nbconvert`.

The caller provides the function that runs code: this module knows no sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.notebook.ipynb import facts_of, outputs_of, source_of, tags_of, times_of
from fumehood.values.execution import Execution

_SKIP_TAG = "skip-execution"
# Such a cell is expected to fail, and the next one runs.
RAISES_TAG = "raises-exception"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookStep:
    """A cell before or after its run.

    Attributes:
        number: The number of the cell among the code cells that are run, from 1.
        total: The number of code cells that are run.
        code: Its code.
        execution: Its execution; None before the run.
    """

    number: int
    total: int
    code: str
    execution: Execution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """A notebook that was run.

    Attributes:
        notebook: The notebook, with the outputs of this run, as JSON holds it.
        executed: How many cells ran.
        total: The number of cells to run.
        failed: The numbers of the cells that failed unexpectedly.
    """

    notebook: dict[str, Any]
    executed: int
    total: int
    failed: tuple[int, ...] = ()


async def run_cells(
    notebook: dict[str, Any],
    run: Callable[[str], Awaitable[Execution]],
    *,
    stop_on_error: bool = False,
    on_step: Callable[[NotebookStep], Awaitable[object]] | None = None,
) -> NotebookRun:
    """Run the code cells of a notebook, and write their outputs into it.

    Args:
        notebook: A notebook from `read_notebook`.
        run: Runs the code of one cell.
        stop_on_error: Do not run the cells after the first failure.
        on_step: Called before and after each cell.
    """
    cells = [cell for cell in notebook["cells"] if is_run(cell)]
    _forget_outputs(notebook)
    executed = 0
    failed: list[int] = []

    for number, cell in enumerate(cells, 1):
        code = source_of(cell)
        await _tell(on_step, NotebookStep(number=number, total=len(cells), code=code))
        execution = await run(code)
        executed = number
        # In a thread: a large one would block the loop.
        await asyncio.to_thread(_write_outputs, cell, execution)
        await _tell(on_step, NotebookStep(number=number, total=len(cells), code=code, execution=execution))

        if execution.error is not None and RAISES_TAG not in tags_of(cell):
            failed.append(number)

            if stop_on_error:
                break

    return NotebookRun(notebook=notebook, executed=executed, total=len(cells), failed=tuple(failed))


def is_run(cell: Mapping[str, Any]) -> bool:
    """Return whether a cell is run: one with code, and without the tag that skips it."""
    return cell["cell_type"] == "code" and bool(source_of(cell).strip()) and _SKIP_TAG not in tags_of(cell)


def _forget_outputs(notebook: dict[str, Any]) -> None:
    """Removes the outputs of an earlier run."""
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
