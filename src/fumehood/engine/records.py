"""The records of a sandbox's contexts, within a bound of memory that all of them share.

Recording a cell only keeps a reference and adds up its size. Beyond the bound, the oldest outputs are dropped first,
then the oldest cells; both are counted, so that the loss is visible.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from sys import getsizeof

from fumehood.bounds import KIB, MIB
from fumehood.values.execution import Changes, Execution, Logs, Record, RecordedCell
from fumehood.values.requests import ExecuteRequest
from fumehood.values.results import CHART_MIME, DATA_MIME, Result, held_bytes
from fumehood.values.sandbox import ContextInfo

MAX_RECORD_BYTES = 16 * MIB
# Estimates of the objects around text and bytes: an execution, a log entry, a result.
_CELL_BYTES = 2 * KIB
_ENTRY_BYTES = 150
_RESULT_BYTES = 1 * KIB
# Formats that a `Result` parses on demand and caches: our copy stays unparsed.
_READ_LATER = frozenset({"application/json", DATA_MIME, CHART_MIME})
_MAX_ERROR_CHARACTERS = 200
_MAX_CHANGED = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A position in the record of a context.

    Attributes:
        length: How many cells the context has had.
        conversation: The prefix of the execution ids of the last cell's process; processes made from its checkpoints
            keep it.
    """

    length: int
    conversation: str | None


@dataclass(slots=True)
class _Kept:
    """A cell with its size; without a cell, it has been dropped."""

    log: _Log
    cell: RecordedCell | None
    size_bytes: int
    is_bare: bool = False


@dataclass(slots=True)
class _Log:
    """The cells of one context.

    Attributes:
        cells: The cells that are kept.
        dropped_cells: How many earlier cells were dropped.
        dropped_outputs: How many of the kept cells have lost their outputs.
        conversation: The prefix of the last cell's process: a process with another prefix has none of its state.
        is_loaded: Whether the next process has the state of the earlier cells, whatever its prefix.
    """

    cells: deque[_Kept] = field(default_factory=deque)
    dropped_cells: int = 0
    dropped_outputs: int = 0
    conversation: str | None = None
    is_loaded: bool = False

    @property
    def length(self) -> int:
        """The number of cells recorded so far, evicted ones included."""
        return self.dropped_cells + len(self.cells)


@dataclass(frozen=True, slots=True)
class Positions:
    """The range of cells of a context that are kept.

    Attributes:
        first: The position of the first kept cell.
        end: The position after the last kept cell.
        dropped_outputs: How many of the kept cells have lost their outputs.
    """

    first: int
    end: int
    dropped_outputs: int


class Recorder:
    """Keeps the records of a sandbox.

    Args:
        max_bytes: The most bytes that all records may take together.
    """

    def __init__(self, max_bytes: int = MAX_RECORD_BYTES) -> None:
        self._max_bytes = max_bytes
        # Outcome and time of the cell that ended last.
        self.last_outcome: str | None = None
        self.last_at: datetime | None = None
        # By context and name: the last execution that has reported a change of a variable.
        self.changed_by: dict[tuple[str, str], str] = {}
        self._size_bytes = 0
        self._bare_bytes = 0
        self._logs: dict[str, _Log] = {}
        # The cells of all contexts, the oldest first: those with their outputs, and those without.
        self._whole: deque[_Kept] = deque()
        self._bare: deque[_Kept] = deque()

    def note_execution(
        self, context_id: str, conversation: str, request: ExecuteRequest, execution: Execution
    ) -> None:
        """Records an execution that has just ended in a process with this prefix."""
        log = self._logs.setdefault(context_id, _Log())
        transaction = execution.transaction
        is_undone = transaction is not None and transaction.outcome == "rolled_back"
        is_fresh = conversation != log.conversation and not log.is_loaded

        # A transaction that was undone has rolled back already: the next cell continues from there.
        if not is_undone:
            log.conversation, log.is_loaded = conversation, False

        cell = RecordedCell(
            code=request.code,
            execution=execution,
            stdin=request.stdin,
            wall_seconds=request.wall_seconds,
            is_fresh=is_fresh,
            is_undone=is_undone,
            by=request.by,
            via=request.via,
        )
        self.note(context_id, cell)

    def note(self, context_id: str, cell: RecordedCell) -> None:
        """Records a cell that has just ended."""
        error = cell.execution.error
        self.last_outcome = "ok" if error is None else error.kind
        self.last_at = datetime.now(UTC)
        self._note_changes(context_id, cell.execution)

        if any(not _READ_LATER.isdisjoint(result.parts) for result in cell.execution.results):
            cell = replace(cell, execution=_unread(cell.execution))

        log = self._logs.setdefault(context_id, _Log())
        log.dropped_outputs += cell.outputs_dropped
        kept = _Kept(log, cell, _size(cell))
        log.cells.append(kept)
        self._whole.append(kept)
        self._size_bytes += kept.size_bytes

        while self._size_bytes > self._max_bytes:
            # Old cells without outputs must not displace the latest outputs.
            if self._whole and self._bare_bytes <= self._max_bytes // 2:
                self._drop_outputs(self._whole.popleft())
            else:
                self._drop_cell(self._bare.popleft())

    def _note_changes(self, context_id: str, execution: Execution) -> None:
        for change in execution.changes.variables if execution.changes is not None else ():
            self.changed_by[context_id, change.name] = execution.id

        while len(self.changed_by) > _MAX_CHANGED:
            del self.changed_by[next(iter(self.changed_by))]

    def begin_with(
        self, context_id: str, record: Record, conversation: str | None = None, *, is_loaded: bool = False
    ) -> None:
        """Begins the record of a context with an earlier record, within the same bound.

        Args:
            context_id: The context.
            record: The earlier record.
            conversation: A process with this prefix has the state of that record.
            is_loaded: Whether the first process has that state, whatever its prefix.
        """
        log = self._logs.setdefault(context_id, _Log())
        log.dropped_cells += record.dropped_cells
        log.conversation, log.is_loaded = conversation, is_loaded

        for cell in record.cells:
            self.note(context_id, cell)

    def length(self, context_id: str) -> int:
        """Returns how many cells a context has ever run."""
        return self._logs.get(context_id, _Log()).length

    def mark(self, context_id: str) -> Mark:
        """Returns the present position of a context, for `go_back`."""
        log = self._logs.get(context_id, _Log())
        return Mark(length=log.length, conversation=log.conversation)

    def go_back(self, context_id: str, mark: Mark) -> None:
        """Records that a context is back at a position."""
        self.undo(context_id, mark.length)
        self._logs.setdefault(context_id, _Log()).conversation = mark.conversation

    def last_execution_id(self, context_id: str) -> str | None:
        """Returns the execution id of a context's last cell, if that cell is kept."""
        end = self.length(context_id)
        found = self.between(context_id, end - 1, end)
        return found[0][1].execution.id if found else None

    def undo(self, context_id: str, length: int) -> None:
        """Marks the cells beyond `length` as undone, after a rollback."""
        log = self._logs.get(context_id, _Log())

        for kept in islice(log.cells, max(0, length - log.dropped_cells), None):
            if kept.cell is not None:
                kept.cell = replace(kept.cell, is_undone=True)

    def read(self, sandbox_id: str, context: ContextInfo) -> Record:
        """Returns the record of a context."""
        log = self._logs.get(context.id, _Log())
        return Record(
            sandbox_id=sandbox_id,
            context_id=context.id,
            language=context.language,
            cells=tuple(kept.cell for kept in log.cells if kept.cell is not None),
            dropped_cells=log.dropped_cells,
            dropped_outputs=log.dropped_outputs,
        )

    def positions(self, context_id: str) -> Positions:
        """Returns which cells of a context are kept."""
        log = self._logs.get(context_id, _Log())
        return Positions(first=log.dropped_cells, end=log.length, dropped_outputs=log.dropped_outputs)

    def between(self, context_id: str, low: int, high: int) -> list[tuple[int, RecordedCell]]:
        """Returns the kept cells of a context from position `low` up to but not including `high`."""
        log = self._logs.get(context_id, _Log())
        first = max(low, log.dropped_cells)
        kept = islice(log.cells, first - log.dropped_cells, max(0, high - log.dropped_cells))
        return [(first + at, one.cell) for at, one in enumerate(kept) if one.cell is not None]

    def find(self, execution_id: str) -> tuple[str, int, RecordedCell] | None:
        """Returns the context, the position and the cell of an execution; the latest cells are searched first."""
        for context_id, log in self._logs.items():
            for back, kept in enumerate(reversed(log.cells), 1):
                if kept.cell is not None and kept.cell.execution.id == execution_id:
                    return context_id, log.length - back, kept.cell

        return None

    @property
    def count(self) -> int:
        """The number of cells recorded so far in all contexts, evicted ones included."""
        return sum(log.length for log in self._logs.values())

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the records take."""
        return self._size_bytes

    def forget(self, context_id: str) -> None:
        """Drops the record of a removed context."""
        log = self._logs.pop(context_id, None)

        if log is None:
            return

        for kept in log.cells:
            self._resize(kept, 0)
            kept.cell = None

        # They have no size, so the bound would never remove them.
        self._whole = deque(kept for kept in self._whole if kept.log is not log)
        self._bare = deque(kept for kept in self._bare if kept.log is not log)

    def _drop_outputs(self, kept: _Kept) -> None:
        if kept.cell is None:
            return

        if not _is_bare(kept.cell.execution):
            kept.cell = replace(
                kept.cell, execution=without_outputs(kept.cell.execution), outputs_dropped=True
            )
            kept.log.dropped_outputs += 1
            self._resize(kept, _size(kept.cell))

        kept.is_bare = True
        self._bare_bytes += kept.size_bytes
        self._bare.append(kept)

    def _drop_cell(self, kept: _Kept) -> None:
        if kept.cell is None:
            return

        # The oldest of all is the oldest of its context.
        kept.log.cells.popleft()
        kept.log.dropped_cells += 1
        kept.log.dropped_outputs -= kept.cell.outputs_dropped
        self._resize(kept, 0)
        kept.cell = None

    def _resize(self, kept: _Kept, size_bytes: int) -> None:
        change = size_bytes - kept.size_bytes
        self._size_bytes += change
        self._bare_bytes += change if kept.is_bare else 0
        kept.size_bytes = size_bytes


def _size(cell: RecordedCell) -> int:
    execution, error = cell.execution, cell.execution.error
    size_bytes = _CELL_BYTES + getsizeof(cell.code)
    size_bytes += 0 if cell.stdin is None else getsizeof(cell.stdin)
    size_bytes += sum(_ENTRY_BYTES + getsizeof(entry.text) for entry in execution.logs.entries)
    size_bytes += sum(map(_result_size, execution.results))
    size_bytes += 0 if error is None else getsizeof(error.value) + getsizeof(error.traceback)
    size_bytes += _ENTRY_BYTES * len(execution.tool_calls)
    return size_bytes + (0 if execution.changes is None else _changes_size(execution.changes))


def _changes_size(changes: Changes) -> int:
    variables = sum(_ENTRY_BYTES + getsizeof(one.name) + getsizeof(one.summary) for one in changes.variables)
    return variables + sum(_ENTRY_BYTES + getsizeof(file.path) for file in changes.files)


def _result_size(result: Result) -> int:
    return _RESULT_BYTES + held_bytes(result)


def _unread(execution: Execution) -> Execution:
    return replace(execution, results=tuple(replace(result) for result in execution.results))


def _is_bare(execution: Execution) -> bool:
    has_traceback = execution.error is not None and bool(execution.error.traceback)
    has_facts = bool(execution.tool_calls) or execution.changes is not None
    return not (execution.results or execution.logs.entries or has_traceback or has_facts)


def without_outputs(execution: Execution) -> Execution:
    """Returns an execution without its outputs, and with the beginning of its error."""
    error = execution.error

    if error is not None:
        error = replace(error, value=error.value[:_MAX_ERROR_CHARACTERS], traceback="")

    return replace(execution, results=(), logs=Logs(), error=error, tool_calls=(), changes=None)
