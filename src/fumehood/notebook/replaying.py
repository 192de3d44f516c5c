"""Runs the cells of a record again, one after another, and compares each with its record.

The caller provides the function that runs a cell: this module knows no sandboxes. The code of a record is as hostile as
it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal

from fumehood.notebook.comparison import CellComparison, compare_cell
from fumehood.values.execution import Execution, Record, RecordedCell


async def replayed(
    record: Record,
    begin: Callable[[bool], Awaitable[object]],
    run: Callable[[RecordedCell], Awaitable[Execution]],
) -> AsyncGenerator[CellComparison, None]:
    """Run the cells of a record, and yield the comparison of each.

    Cells that were undone or stopped from outside are not run: a full run of a stopped cell would do more than it did.

    Args:
        record: The record.
        begin: Makes the context new, before each cell that ran first in a new one; called with True the first time.
        run: Runs a cell in it.
    """
    is_first = is_new = True

    for number, cell in enumerate(record.cells, 1):
        if reason := _skip_reason(cell):
            yield CellComparison(
                number=number,
                code=cell.code,
                is_known=reason == "undone",
                is_skipped=True,
                skip_reason=reason,
            )
            continue

        if is_new or cell.is_fresh:
            await begin(is_first)
            is_first = is_new = False

        execution = await run(cell)
        # In a thread: large outputs would block the loop.
        yield await asyncio.to_thread(compare_cell, number, cell, execution)


def _skip_reason(cell: RecordedCell) -> Literal["", "undone", "interrupted", "ended"]:
    error = cell.execution.error

    if cell.is_undone:
        return "undone"

    if error is None:
        return ""

    if error.kind == "context_died" and error.name == "SandboxEnded":
        return "ended"

    return "interrupted" if error.kind == "interrupted" else ""
