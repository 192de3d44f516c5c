"""Cells as readers of a sandbox's record see them: cells that have ended, and the one that still runs.

A `CellInProgress` reads the transcript that the runner writes, and must not change it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from fumehood.values.charts import JsonValue
from fumehood.values.events import ErrorEvent, Event, InputRequestEvent, ResultEvent
from fumehood.values.execution import Execution, RecordedCell
from fumehood.values.limits import Usage
from fumehood.values.looking import (
    Cell,
    ChangeCounts,
    PartSummary,
    PendingInput,
    ResultSummary,
    Variable,
)
from fumehood.values.requests import ExecuteRequest
from fumehood.values.results import Result
from fumehood.values.transcript import Transcript


@dataclass(frozen=True, slots=True)
class LastVariables:
    """The variables of a context when they were last seen."""

    at: datetime
    count: int
    variables: tuple[Variable, ...]


class CellInProgress:
    """An execution under way, for readers of the record.

    Args:
        request: The code.
        context_id: The id of its context.
        position: The position that the cell will have in the record.
        execution_id: Its id.
        transcript: Its events so far.
    """

    def __init__(
        self,
        request: ExecuteRequest,
        context_id: str,
        position: int,
        execution_id: str,
        transcript: Transcript,
    ) -> None:
        self.execution_id = execution_id
        self.position = position
        self.input_request: InputRequestEvent | None = None
        self._request = request
        self._context_id = context_id
        self._transcript = transcript

    def note(self, event: Event) -> None:
        """Records an event: an input request stays pending until it is answered or the code has failed."""
        if isinstance(event, InputRequestEvent):
            self.input_request = event
        elif isinstance(event, ErrorEvent):
            self.input_request = None

    def note_answer(self, request_id: str) -> None:
        """Notes that an input request was answered."""
        if self.input_request is not None and self.input_request.request_id == request_id:
            self.input_request = None

    def begun(self) -> dict[str, JsonValue]:
        """Returns the fields that are known when the execution begins: its context, position, code and origin."""
        request = self._request
        return {
            "context_id": self._context_id,
            "position": self.position,
            "code": request.code,
            "by": request.by,
            "via": request.via,
        }

    def number_of(self, event: ResultEvent) -> int:
        """Returns the number of the event's result among the results of the execution, from 0."""
        return self._transcript.number_of(event.result)

    def execution(self) -> Execution:
        """Returns the execution with its output so far."""
        return self._transcript.finish(usage=Usage())

    def recorded(self) -> RecordedCell:
        """Returns the execution so far as a cell of a record."""
        request = self._request
        return RecordedCell(
            code=request.code,
            execution=self.execution(),
            stdin=request.stdin,
            wall_seconds=request.wall_seconds,
            by=request.by,
            via=request.via,
        )

    def cell(self, *, whole: bool) -> Cell:
        """Returns the execution as a running cell."""
        asked = self.input_request
        pending = (
            None
            if asked is None
            else PendingInput(request_id=asked.request_id, prompt=asked.prompt, is_password=asked.is_password)
        )
        cell = cell_of(self.recorded(), self._context_id, self.position, whole=whole)
        return replace(cell, state="running", outcome=None, usage=None, input_request=pending)


def cell_of(recorded: RecordedCell, context_id: str, position: int, *, whole: bool) -> Cell:
    """Returns a recorded cell as readers of the record see it."""
    execution = recorded.execution
    changes = execution.changes
    return Cell(
        position=position,
        id=execution.id,
        context_id=context_id,
        state="ended",
        code=recorded.code,
        stdin=recorded.stdin,
        by=recorded.by,
        via=recorded.via,
        started_at=execution.started_at,
        is_fresh=recorded.is_fresh,
        is_undone=recorded.is_undone,
        outputs_dropped=recorded.outputs_dropped,
        outcome=outcome_of(execution),
        execution_count=execution.execution_count,
        usage=execution.usage,
        error=execution.error,
        state_lost=execution.state_lost,
        transaction=execution.transaction,
        truncated=execution.truncated,
        changes=None
        if changes is None
        else ChangeCounts(variables=len(changes.variables), files=len(changes.files) + changes.more_files),
        tool_calls=len(execution.tool_calls),
        output_characters=sum(len(entry.text) for entry in execution.logs.entries),
        results=tuple(summary_of(number, result) for number, result in enumerate(execution.results)),
        execution=execution if whole else None,
    )


def outcome_of(execution: Execution) -> str:
    """Returns `ok`, or the kind of the error that ended an execution."""
    return "ok" if execution.error is None else execution.error.kind


def summary_of(number: int, result: Result) -> ResultSummary:
    """Returns a result without its content."""
    return ResultSummary(
        number=number,
        is_main_result=result.is_main_result,
        display_id=result.display_id,
        parts=tuple(PartSummary(mime=mime, size_bytes=len(part)) for mime, part in result.parts.items()),
    )
