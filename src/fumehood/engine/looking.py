"""Reads that do not affect a sandbox: pages of its records, one cell, the bytes of one result, its usage.

It reads data that the host holds and counters of the kernel. It must not wait for a context, resume a sandbox, lengthen
its life or run code of the guest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fumehood.engine.cells import CellInProgress, cell_of
from fumehood.engine.command_history import text_page
from fumehood.engine.moments import compare, read_kept_file, variables_at
from fumehood.engine.records import Recorder
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.variables import existing_context, list_variables, page_of, show_variable
from fumehood.errors import ExecutionNotFoundError, InvalidArgumentError
from fumehood.off_loop import off_loop
from fumehood.values.execution import Execution, RecordedCell
from fumehood.values.looking import (
    Cell,
    CellPage,
    Look,
    PortList,
    ReadCell,
    ReadCells,
    ReadCommands,
    ReadPorts,
    ReadResult,
    ReadUse,
    ReadVariable,
    ReadVariables,
    SandboxUse,
)
from fumehood.values.moments import ReadDifferences, ReadKeptFile
from fumehood.values.requests import DEFAULT_CONTEXT_ID

_INIT_PID = 1


async def answer_look(sandbox: LiveSandbox, request: Look[Any]) -> Any:
    """Returns the answer to a question; the class of the question determines the type of the answer."""
    match request:
        case ReadCells():
            return read_cells(sandbox, request)
        case ReadCell():
            return read_cell(sandbox, request)
        case ReadResult():
            return read_result(sandbox, request)
        case ReadUse():
            contexts = tuple(context.info.id for context in sandbox.contexts)
            return replace(use_of(sandbox), contexts=contexts)
        case ReadCommands():
            return await off_loop("answers", text_page, sandbox.processes.history.find(request))
        case ReadPorts():
            return await list_ports(sandbox)
        case ReadVariables(at=str(checkpoint_id)):
            return page_of(await variables_at(sandbox, checkpoint_id, request.context_id, ""), request)
        case ReadVariables():
            return await list_variables(sandbox, request)
        case ReadVariable(at=str(checkpoint_id)):
            return await variables_at(sandbox, checkpoint_id, request.context_id, request.name)
        case ReadVariable():
            return await show_variable(sandbox, request)
        case ReadDifferences():
            return await compare(sandbox, request)
        case ReadKeptFile():
            return await read_kept_file(sandbox, request)
        case _:
            raise InvalidArgumentError(
                field="look", value=type(request).__name__, allowed="a question of `fumehood.values.looking`"
            )


def use_of(sandbox: LiveSandbox) -> SandboxUse:
    """Returns the usage of a sandbox: the kernel's counters, and figures of its record."""
    guest, recorder = sandbox.guest, sandbox.recorder
    return SandboxUse(
        cpu_seconds=guest.used_cpu_seconds(),
        memory_bytes=guest.memory_bytes(),
        peak_memory_bytes=guest.peak_memory_bytes(),
        processes=guest.process_count(),
        cells=recorder.count,
        is_running=any(True for _ in _all_underway(sandbox)),
        last_outcome=recorder.last_outcome,
        last_at=recorder.last_at,
        watchers=sandbox.feed.followers,
    )


async def list_ports(sandbox: LiveSandbox) -> PortList:
    """Returns the ports on which programs in a sandbox listen, as the kernel reports them."""
    listening = await sandbox.guest.listening()

    if listening is None:
        return PortList(state="none")

    outside = sandbox.served_ports.numbers
    items = (replace(one, is_answered_outside=one.port in outside) for one in listening)
    # Init listens for the way out of the network as well, which is no server of the guest's.
    return PortList(
        state="current",
        items=tuple(one for one in items if one.pid != _INIT_PID or one.is_answered_outside),
    )


def read_cells(sandbox: LiveSandbox, request: ReadCells) -> CellPage:
    """Returns a page of the cells that ran in a context, in order; a running cell comes last."""
    context_id = request.context_id or DEFAULT_CONTEXT_ID
    context = existing_context(sandbox, context_id)
    underway = None if context is None else context.underway

    if underway is None:
        return recorded_cells(sandbox.recorder, request)

    end = sandbox.recorder.positions(context_id).end + 1
    page = recorded_cells(sandbox.recorder, request, end)
    low, high = _span(sandbox.recorder.positions(context_id).first, end, request)

    if low <= underway.position < high:
        page = replace(page, items=(*page.items, _running(sandbox, underway, whole=request.whole)))

    return page


def recorded_cells(recorder: Recorder, request: ReadCells, end: int | None = None) -> CellPage:
    """Returns a page of the cells of a record, in order.

    Args:
        recorder: The records.
        request: The question.
        end: The position after the last cell, if a cell runs that is not recorded yet; otherwise None.
    """
    context_id = request.context_id or DEFAULT_CONTEXT_ID
    log = recorder.positions(context_id)
    end = log.end if end is None else end
    low, high = _span(log.first, end, request)
    cells = (
        cell_of(recorded, context_id, position, whole=request.whole)
        for position, recorded in recorder.between(context_id, low, min(high, log.end))
    )
    return CellPage(
        items=tuple(cells),
        first_position=log.first,
        end_position=end,
        dropped_cells=log.first,
        dropped_outputs=log.dropped_outputs,
    )


def _span(first: int, end: int, request: ReadCells) -> tuple[int, int]:
    """Returns the start and the end of the positions that a question asks for, clipped to the existing ones."""
    low = first if request.after is None else max(first, request.after + 1)
    high = end if request.before is None else min(end, request.before)

    if request.after is None:
        return max(low, high - request.limit), high

    return low, min(high, low + request.limit)


def read_cell(sandbox: LiveSandbox, request: ReadCell) -> Cell:
    """Returns one cell with its execution.

    Raises:
        ExecutionNotFoundError: The execution is not in a record, and does not run.
    """
    for underway in _all_underway(sandbox):
        if underway.execution_id == request.execution_id:
            return _running(sandbox, underway, whole=True)

    return found_cell(sandbox.recorder, request.execution_id)


def found_cell(recorder: Recorder, execution_id: str) -> Cell:
    """Returns a finished cell of the record, with its whole execution.

    Raises:
        ExecutionNotFoundError: The execution is not in the record.
    """
    context_id, position, recorded = _found(recorder, execution_id)
    return cell_of(recorded, context_id, position, whole=True)


def read_result(sandbox: LiveSandbox, request: ReadResult) -> bytes:
    """Returns the bytes of one format of a result.

    Raises:
        ExecutionNotFoundError: The execution is not in a record, and does not run.
        InvalidArgumentError: The execution has no such result, or the result has no such format.
    """
    running = next((one for one in _all_underway(sandbox) if one.execution_id == request.execution_id), None)
    execution = (
        running.execution() if running else _found(sandbox.recorder, request.execution_id)[2].execution
    )
    return bytes_of(execution, request)


def bytes_of(execution: Execution, request: ReadResult) -> bytes:
    """Returns the bytes of one format of a result of an execution.

    Raises:
        InvalidArgumentError: The execution has no such result, or the result has no such format.
    """
    if request.number >= len(execution.results):
        raise InvalidArgumentError(
            field="number",
            value=request.number,
            allowed=f"one of its {len(execution.results)} results, from 0",
        )

    parts = execution.results[request.number].parts

    if request.mime not in parts:
        raise InvalidArgumentError(
            field="mime", value=request.mime, allowed=f"a format of that result: {', '.join(parts)}"
        )

    return parts[request.mime]


def _running(sandbox: LiveSandbox, underway: CellInProgress, *, whole: bool) -> Cell:
    """Returns a running cell, with the number of the last event that it includes."""
    sandbox.feed.flush()
    return replace(underway.cell(whole=whole), seq=sandbox.feed.seq)


def _all_underway(sandbox: LiveSandbox) -> Iterable[CellInProgress]:
    return (context.underway for context in sandbox.contexts if context.underway is not None)


def _found(recorder: Recorder, execution_id: str) -> tuple[str, int, RecordedCell]:
    found = recorder.find(execution_id)

    if found is None:
        raise ExecutionNotFoundError(execution_id=execution_id)

    return found
