"""The records of sandboxes that have ended, for the supervisor and for readers.

Runs in the host process, on the engine's loop, and must not wait there for a disk: this module takes the records of a
sandbox at its end, and `record_files` does all other work in its thread, one job after the other.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from fumehood.bounds import MIB
from fumehood.cancellation import stop
from fumehood.engine.command_history import page_of
from fumehood.engine.looking import bytes_of, found_cell, recorded_cells
from fumehood.engine.record_files import RecordFiles, TakenRecord, WholeRecord
from fumehood.engine.record_index import RecordBounds
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import ContextNotFoundError, InvalidArgumentError, RecordNotFoundError
from fumehood.log import events
from fumehood.off_loop import off_loop
from fumehood.values.audit import AuditLog
from fumehood.values.execution import ExecutionError, Record, RecordedCell
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import Look, ReadCell, ReadCells, ReadCommands, ReadResult
from fumehood.values.requests import DEFAULT_CONTEXT_ID
from fumehood.values.sandbox import SandboxInfo

_SWEEP_SECONDS = 600.0
# Of records that wait to be written. What ends beyond that takes the place of records of a key that holds more; or it
# loses the output of its commands, or is not kept.
_MAX_WAITING_BYTES = 256 * MIB
_MAX_OPEN = 4
_MAX_OPEN_BYTES = 64 * MIB
_CLOSE_SECONDS = 30.0


class KeptRecords:
    """The records of the sandboxes of one host that have ended.

    Args:
        folder: The folder of their files; made with mode 0700.
        bounds: How much is kept.

    Raises:
        InvalidArgumentError: The folder cannot be made or written to.
    """

    def __init__(self, folder: str, bounds: RecordBounds) -> None:
        self._files = RecordFiles(folder, bounds)
        self._opened: OrderedDict[str, WholeRecord] = OrderedDict()
        self._waiting: set[asyncio.Task[None]] = set()
        self._queue = _Queue()
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to remove records that are too old at regular intervals."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    def keep(self, info: SandboxInfo, sandbox: LiveSandbox) -> None:
        """Keeps the record of a sandbox that has just ended."""
        self.start()
        self._write(_take(info, sandbox))

    def _write(self, taken: TakenRecord) -> None:
        number = self._queue.add(taken)

        if number is None:
            number = self._queue.add(taken.without_output_of_commands())

        if number is None:
            _log_not_kept(taken)
        else:
            self._later(self._write_next, number, ended=partial(self._queue.release, number))

    def _write_next(self, number: int) -> None:
        """Writes a record of the queue, in the thread for kept records."""
        if (taken := self._queue.take(number)) is not None:
            self._files.write(taken)

    def forget(self, sandbox_id: str) -> None:
        """Drops the record of a sandbox that a fork has replaced."""
        self._opened.pop(sandbox_id, None)
        self._later(self._files.remove, sandbox_id)

    async def page(self, request: ListRecords) -> RecordList:
        """Returns a page of the kept records; the sandbox that ended last comes first."""
        return await off_loop("kept records", self._files.page, request)

    async def about(self, sandbox_id: str) -> EndedSandbox:
        """Describes a sandbox that has ended."""
        return await off_loop("kept records", self._files.about, sandbox_id)

    async def look(self, sandbox_id: str, request: Look[Any]) -> Any:
        """Answers a question about the cells or commands of an ended sandbox."""
        whole = await self._open(sandbox_id)

        match request:
            case ReadCells():
                _named(whole, request.context_id)
                return recorded_cells(whole.recorder, request)
            case ReadCell():
                return found_cell(whole.recorder, request.execution_id)
            case ReadResult():
                cell = found_cell(whole.recorder, request.execution_id)
                assert cell.execution is not None, "it was asked for"
                return bytes_of(cell.execution, request)
            case ReadCommands():
                return page_of(whole.commands, request)
            case _:
                raise InvalidArgumentError(
                    field="look",
                    value=type(request).__name__,
                    allowed="ReadCells, ReadCell, ReadResult or ReadCommands",
                )

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        """Returns the record of a context of an ended sandbox."""
        return _named(await self._open(sandbox_id), context_id)

    async def audit(self, sandbox_id: str) -> AuditLog:
        """Returns the audit record of an ended sandbox."""
        return (await self._open(sandbox_id)).audit

    async def delete(self, sandbox_id: str) -> None:
        """Deletes a record."""
        self._opened.pop(sandbox_id, None)

        if not await off_loop("kept records", self._files.remove, sandbox_id):
            raise RecordNotFoundError(sandbox_id=sandbox_id)

    async def aclose(self) -> None:
        """Returns when the records of all sandboxes that have ended so far are written."""
        if self._sweeping is not None:
            await stop(self._sweeping)

        if self._waiting:
            await asyncio.wait(self._waiting, timeout=_CLOSE_SECONDS)

    async def _open(self, sandbox_id: str) -> WholeRecord:
        # It may be too old by now.
        about = await self.about(sandbox_id)

        if (whole := self._opened.get(sandbox_id)) is None or whole.about != about:
            whole = await off_loop("kept records", self._files.read, sandbox_id)
            self._opened[sandbox_id] = whole

        self._opened.move_to_end(sandbox_id)

        while len(self._opened) > 1 and (
            len(self._opened) > _MAX_OPEN
            or sum(one.about.size_bytes for one in self._opened.values()) > _MAX_OPEN_BYTES
        ):
            self._opened.popitem(last=False)

        return whole

    async def _sweep(self) -> None:
        while True:
            await off_loop("kept records", self._files.expire)
            self._opened.clear()
            await asyncio.sleep(_SWEEP_SECONDS)

    def _later(
        self, work: Callable[..., object], *arguments: object, ended: Callable[[], None] | None = None
    ) -> None:
        async def do() -> None:
            try:
                await off_loop("kept records", work, *arguments)
            finally:
                if ended is not None:
                    ended()

        task = asyncio.create_task(do())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


class _Queue:
    """The records that wait to be written, within a bound in bytes that the keys divide.

    The engine's loop adds and releases; the thread for kept records takes. Each record leaves `_waiting` once.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: dict[int, TakenRecord] = {}
        # Owner and size of each record until it is written, the latest last.
        self._held: dict[int, tuple[str, int]] = {}

    def add(self, taken: TakenRecord) -> int | None:
        """Adds a record, and returns its number; None without room that its key may take."""
        if (displaced := self._displaced_by(taken)) is None:
            return None

        for number in displaced:
            # The thread may have begun to write it in the meantime: then it is held for a while beyond the bound.
            if (dropped := self.take(number)) is not None:
                self.release(number)
                _log_not_kept(dropped)

        number = next(self._numbers)
        self._waiting[number] = taken
        self._held[number] = taken.about.sandbox.owner, taken.size_bytes
        return number

    def take(self, number: int) -> TakenRecord | None:
        """Removes a record that waits, and returns it; None for one that was displaced."""
        return self._waiting.pop(number, None)

    def release(self, number: int) -> None:
        """Gives back the room of a record that has been written or displaced."""
        self._held.pop(number, None)

    def _displaced_by(self, taken: TakenRecord) -> list[int] | None:
        """Returns the records that leave so that another has room, if their keys hold more than its own would."""
        lacking = sum(size for _, size in self._held.values()) + taken.size_bytes - _MAX_WAITING_BYTES

        if lacking <= 0:
            return []

        held: Counter[str] = Counter()
        waiting: dict[str, list[int]] = {}

        for number, (owner, size) in self._held.items():
            held[owner] += size

            if number in self._waiting:
                waiting.setdefault(owner, []).append(number)

        own = held[taken.about.sandbox.owner] + taken.size_bytes
        displaced: list[int] = []

        while lacking > 0:
            most = max(waiting, key=held.__getitem__, default=None)

            if most is None or held[most] <= own:
                return None

            displaced.append(number := waiting[most].pop())
            size = self._held[number][1]
            held[most] -= size
            lacking -= size

            if not waiting[most]:
                del waiting[most]

        return displaced


def _log_not_kept(taken: TakenRecord) -> None:
    events.RECORD_NOT_KEPT.log(sandbox_id=taken.about.id, reason="too many of its key wait to be written")


def _take(info: SandboxInfo, sandbox: LiveSandbox) -> TakenRecord:
    reason = sandbox.end_cause[0]
    recorder, history = sandbox.recorder, sandbox.processes.history
    records = []

    for context in sandbox.contexts:
        record = recorder.read(info.id, context.info)

        if context.underway is not None:
            # It will never be recorded: what it did until now is the last that is known of it.
            record = replace(record, cells=(*record.cells, _cut_off(context.underway.recorded(), reason)))

        if record.cells or record.dropped_cells:
            records.append(record)

    about = EndedSandbox(
        sandbox=info,
        ended_at=datetime.now(UTC),
        reason=reason,
        cells=recorder.count,
        commands=history.count,
        last_outcome=recorder.last_outcome,
    )
    return TakenRecord(
        about=about,
        records=tuple(records),
        read_audit=sandbox.audit.reading(info.id),
        commands=history.take_last(),
        other_bytes=recorder.size_bytes + sandbox.audit.size_bytes,
    )


def _cut_off(cell: RecordedCell, reason: str) -> RecordedCell:
    error = ExecutionError(kind="context_died", name="SandboxEnded", value=f"its sandbox ended: {reason}")
    return replace(cell, execution=replace(cell.execution, error=error))


def _named(whole: WholeRecord, context_id: str | None) -> Record:
    name = context_id or DEFAULT_CONTEXT_ID

    if (record := whole.records.get(name)) is not None:
        return record

    if name == DEFAULT_CONTEXT_ID:
        return Record(sandbox_id=whole.about.id, context_id=name, language="python")

    raise ContextNotFoundError(context_id=name)
