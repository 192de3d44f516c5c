"""Runs records and notebooks in a sandbox: replays a record and compares it, cell by cell; executes a notebook.

Runs in the user's process, over the public sandbox only. The code of a record is as hostile as it was; it runs in a
fresh sandbox, which is killed at the end. A notebook is executed as by `nbconvert --execute`: the output of each cell
replaces its outputs. `Determinism` describes the sources that can be fixed before code runs again: seeds, the system's
randomness and the time of day.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fumehood.api.async_sandbox import AsyncSandbox
from fumehood.errors import InvalidArgumentError
from fumehood.notebook.cell_runs import NotebookRun, NotebookStep, run_cells
from fumehood.notebook.comparison import CellComparison
from fumehood.notebook.determinism import CLOCK_START, FIRST_SEED, fixing_code, not_fixed
from fumehood.notebook.ipynb import NotebookSource, read_notebook, set_parameters
from fumehood.notebook.replaying import replayed
from fumehood.port.backend import Backend
from fumehood.portal import Turn, call
from fumehood.tracebacks import ending_at_caller
from fumehood.values.checks import check_integer
from fumehood.values.execution import Execution, Record, RecordedCell
from fumehood.values.languages import PYTHON, known_language
from fumehood.values.requests import ExecuteRequest
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookOptions:
    """The options of running a notebook.

    Attributes:
        parameters: Variables to set after the cell with the tag `parameters`, or before all cells.
        stop_on_error: Whether to stop after the first cell that fails.
        transactional: Whether to undo the changes of variables and files that a failing cell has made.
        determinism: The sources of randomness and time that are fixed before the first cell; None: none.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    stop_on_error: bool = False
    transactional: bool = False
    determinism: Determinism | None = None


async def run_notebook(
    sandbox: AsyncSandbox,
    source: NotebookSource,
    options: NotebookOptions | None = None,
    *,
    on_step: Callable[[NotebookStep], Awaitable[object]] | None = None,
) -> NotebookRun:
    """Run the code cells of a notebook in the default context of a sandbox.

    Args:
        sandbox: The sandbox.
        source: A path, or the notebook itself.
        options: The options of the run.
        on_step: Called before and after each cell.

    Raises:
        InvalidArgumentError: The source is not a notebook that can be run here.
    """
    options = options or NotebookOptions()
    determinism = options.determinism
    # In threads: a large one would block the loop.
    notebook = await asyncio.to_thread(read_notebook, source)
    set_parameters(notebook, options.parameters)

    if determinism is not None:
        await determinism.apply(sandbox)

    async def run(code: str) -> Execution:
        execution = await sandbox.run_code(code, transactional=options.transactional)

        if execution.state_lost and determinism is not None:
            # The fixed seeds and clock were lost with the state.
            await determinism.apply(sandbox)

        return execution

    return await run_cells(notebook, run, stop_on_error=options.stop_on_error, on_step=on_step)


def run_in_sandbox(
    sandbox: Sandbox,
    source: NotebookSource,
    options: NotebookOptions | None = None,
    *,
    on_step: Callable[[NotebookStep], object] | None = None,
) -> NotebookRun:
    """Do what `run_notebook` does, from a thread; `on_step` is called in that thread."""
    turn = Turn()
    return turn.call(run_notebook, sandbox._async, source, options, on_step=turn.relay(on_step, "on_step"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The result of running a record again.

    Attributes:
        cells: Each cell, in order.
        record: The record of this run.
        not_fixed: Sources of differences that a replay does not fix.
        dropped_cells: The number of cells that the record no longer had, so that they were not run again.
    """

    cells: tuple[CellComparison, ...]
    record: Record
    not_fixed: tuple[str, ...]
    dropped_cells: int = 0

    @property
    def first_difference(self) -> CellComparison | None:
        """The first cell with another result than before, or None."""
        return next((cell for cell in self.cells if cell.differences), None)

    @property
    def is_same(self) -> bool:
        """True if every cell is known to have given the same result as before, and none is missing."""
        return not self.dropped_cells and all(cell.is_same for cell in self.cells)

    def __str__(self) -> str:
        first = self.first_difference

        if first is not None:
            return f"cell {first.number} differs: {first.differences[0]}"

        unknown = sum(not cell.is_known for cell in self.cells) + self.dropped_cells
        return f"{len(self.cells)} cells, no difference" + (
            f"; {unknown} could not be compared" if unknown else ""
        )


@ending_at_caller
async def areplay(
    record: Record,
    *,
    deterministic: bool | Determinism = False,
    template: str | Template = "default",
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> ReplayReport:
    """Run a record again in a fresh sandbox and compare the result of each cell with the recorded one.

    Output, results and errors are compared; times, usage and addresses of objects are not. Files that were uploaded,
    environment variables of single executions, and other contexts are not part of a record.

    Args:
        record: The record that `get_record` returned.
        deterministic: Whether to fix the seeds, the system's randomness in Python and the time of day before the first
            cell: True for `Determinism()`, or a `Determinism` of your own. `ReplayReport.not_fixed` lists the remaining
            sources of differences. A record that was made without it can differ from its replay; then compare two
            replays, with `replay(replay(record, deterministic=True).record, deterministic=True)`.
        template: The template of the sandbox; that of the record's sandbox should be the same.
        url: Address of the server; None: FUMEHOOD_URL, or else this process.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        backend: An existing backend to use, instead of `url` and `api_key`.
    """
    if not isinstance(record, Record):
        raise InvalidArgumentError(
            field="record", value=type(record).__name__, allowed="a Record, as get_record() gives"
        )

    sandbox = await AsyncSandbox.create(template, url=url, api_key=api_key, backend=backend)

    try:
        context = await _context_for(sandbox, record)

        async def begin(is_first: bool) -> None:
            if not is_first:
                await sandbox.restart_code_context(context)

            await _fix(sandbox, record, deterministic)

        async def run(cell: RecordedCell) -> Execution:
            return await sandbox.run_code(
                cell.code,
                language=known_language(record.language).name,
                context=context,
                stdin=cell.stdin,
                timeout=cell.wall_seconds,
            )

        compared = [one async for one in replayed(record, begin, run)]
        return ReplayReport(
            cells=tuple(compared),
            record=await sandbox.get_record(context),
            not_fixed=not_fixed(deterministic=bool(deterministic)),
            dropped_cells=record.dropped_cells,
        )
    finally:
        await sandbox.kill(wait=False)


@ending_at_caller
def replay(
    record: Record,
    *,
    deterministic: bool | Determinism = False,
    template: str | Template = "default",
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
) -> ReplayReport:
    """Run a record again in a fresh sandbox and compare the result of each cell with the recorded one.

    Output, results and errors are compared; times, usage and addresses of objects are not. Files that were uploaded,
    environment variables of single executions, and other contexts are not part of a record.

    Args:
        record: The record that `get_record` returned.
        deterministic: Whether to fix the seeds, the system's randomness in Python and the time of day before the first
            cell: True for `Determinism()`, or a `Determinism` of your own. `ReplayReport.not_fixed` lists the remaining
            sources of differences. A record that was made without it can differ from its replay; then compare two
            replays, with `replay(replay(record, deterministic=True).record, deterministic=True)`.
        template: The template of the sandbox; that of the record's sandbox should be the same.
        url: Address of the server; None: FUMEHOOD_URL, or else this process.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
        backend: An existing backend to use, instead of `url` and `api_key`.
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
    if record.language == PYTHON.name:
        return "default"

    return (await sandbox.create_code_context(language=known_language(record.language).name)).id


async def _fix(sandbox: AsyncSandbox, record: Record, deterministic: bool | Determinism) -> None:
    if deterministic and record.language == "python":
        determinism = deterministic if isinstance(deterministic, Determinism) else Determinism()
        await determinism.apply(sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """The sources of randomness and time that are fixed before the first cell.

    Attributes:
        seed: The seed of `random`, numpy, torch if it is loaded, and of the system's randomness as used by Python:
            `secrets`, `uuid.uuid4`, `numpy.random.default_rng()`.
        clock_start: The time of day at the start; each reading is a millisecond later than the previous one, and
            `time.sleep` advances the clock by its argument.
    """

    seed: int = FIRST_SEED
    clock_start: datetime = CLOCK_START

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, low=0, high=2**63 - 1)

        start = self.clock_start

        if not isinstance(start, datetime) or start.tzinfo is None or not 1971 <= start.year <= 2200:
            raise InvalidArgumentError(
                field="clock_start", value=start, allowed="a time with its zone, from 1971 to 2200"
            )

    async def apply(self, sandbox: AsyncSandbox) -> None:
        """Fix these sources in the default context of a sandbox in which no code has run.

        Raises:
            InvalidArgumentError: The interpreter of the sandbox does not allow it.
        """
        code = fixing_code(self.seed, self.clock_start)
        execution = await sandbox._sandbox_handle.backend.run(
            sandbox.id, ExecuteRequest(code=code, silent=True)
        )

        if execution.error is not None:
            raise InvalidArgumentError(
                field="deterministic",
                value=json.dumps(f"{execution.error.name}: {execution.error.value[:200]}"),
                allowed="False for this template, whose interpreter does not let its time be set",
            )
