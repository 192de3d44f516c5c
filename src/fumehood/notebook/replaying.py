"""A record run again in a sandbox of its own, and compared with what it was, cell by cell.

Runs in the host process, over the public sandbox only. The code is that of the record, so it is as hostile as it was;
it runs in a fresh sandbox, which is killed at the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fumehood.backends.base import Backend
from fumehood.errors import InvalidArgumentError
from fumehood.facade.aio import AsyncSandbox, Language
from fumehood.facade.portal import call
from fumehood.notebook.comparing import CellComparison, compare_cell
from fumehood.notebook.determinism import NOT_FIXED, Determinism
from fumehood.record import Record
from fumehood.templates.template import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """How a record went when it was run again.

    Attributes:
        cells: Each cell, in order.
        record: The record of this run.
        not_fixed: What may differ although nothing is wrong: all that no replay fixes.
        dropped_cells: Cells that the record no longer had, and that were therefore not run again.
    """

    cells: tuple[CellComparison, ...]
    record: Record
    not_fixed: tuple[str, ...]
    dropped_cells: int = 0

    @property
    def first_difference(self) -> CellComparison | None:
        """The first cell that did something else than before, or None."""
        return next((cell for cell in self.cells if cell.differences), None)

    @property
    def is_same(self) -> bool:
        """True when every cell is known to have done the same, and none is missing."""
        return not self.dropped_cells and all(cell.is_same for cell in self.cells)

    def __str__(self) -> str:
        first = self.first_difference

        if first is not None:
            return f"cell {first.number} differs: {first.differences[0]}"

        unknown = sum(not cell.is_known for cell in self.cells) + self.dropped_cells
        return f"{len(self.cells)} cells, no difference" + (
            f"; {unknown} could not be compared" if unknown else ""
        )


async def areplay(
    record: Record,
    *,
    deterministic: bool | Determinism = False,
    template: str | Template = "default",
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> ReplayReport:
    """Run a record again; described at `replay`."""
    if not isinstance(record, Record):
        raise InvalidArgumentError(
            field="record", value=type(record).__name__, allowed="a Record, as get_record() gives"
        )

    sandbox = await AsyncSandbox.create(template, url=url, api_key=api_key, backend=backend)

    try:
        context = await _context_for(sandbox, record)
        compared: list[CellComparison] = []
        is_new = True

        for number, cell in enumerate(record.cells, 1):
            if cell.is_undone:
                compared.append(CellComparison(number=number, code=cell.code, is_skipped=True))
                continue

            if cell.is_fresh and not is_new:
                await sandbox.restart_code_context(context)
                is_new = True

            if is_new:
                await _fix(sandbox, record, deterministic)
                is_new = False

            execution = await sandbox.run_code(
                cell.code, language=_language(record), context=context, stdin=cell.stdin
            )
            # In a thread: large outputs would hold up what else runs on this loop.
            compared.append(await asyncio.to_thread(compare_cell, number, cell, execution))

        return ReplayReport(
            cells=tuple(compared),
            record=await sandbox.get_record(context),
            not_fixed=NOT_FIXED if deterministic else ("anything that depends on time or chance", *NOT_FIXED),
            dropped_cells=record.dropped_cells,
        )
    finally:
        await sandbox.kill(wait=False)


def replay(
    record: Record,
    *,
    deterministic: bool | Determinism = False,
    template: str | Template = "default",
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> ReplayReport:
    """Run a record again in a fresh sandbox and compare what each cell does with what it did.

    Output, results and errors are compared; times, usage and addresses of objects are not. Files that were uploaded,
    environment variables of single executions, and other contexts are not part of a record.

    Args:
        record: What `get_record` gave.
        deterministic: Fix the seeds, Python's use of the system's randomness and the time of day before the first
            cell, as `Determinism()` says, or one of your own. `ReplayReport.not_fixed` lists what that leaves open. A
            record that was made without it can differ from one that is replayed with it: compare two replays then,
            with `replay(replay(record, deterministic=True).record, deterministic=True)`.
        template: What the sandbox starts from; that of the record's sandbox should be the same.
        url: Address of the server; None: FUMEHOOD_URL, or in this process.
        api_key: What opens it; None: FUMEHOOD_API_KEY.
        backend: Where the sandbox lives, in place of both.
    """
    return call(
        areplay,
        record,
        deterministic=deterministic,
        template=template,
        url=url,
        api_key=api_key,
        backend=backend,
    )


async def _context_for(sandbox: AsyncSandbox, record: Record) -> str:
    if record.language == "python":
        return "default"

    return (await sandbox.create_code_context(language=_language(record))).id


async def _fix(sandbox: AsyncSandbox, record: Record, deterministic: bool | Determinism) -> None:
    if deterministic and record.language == "python":
        determinism = deterministic if isinstance(deterministic, Determinism) else Determinism()
        await determinism.apply(sandbox)


def _language(record: Record) -> Language:
    return "bash" if record.language == "bash" else "python"
