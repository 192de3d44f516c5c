"""The record of one running execution: events in, an `Execution` out, never more of it than the limits allow.

Runs in the host process, without input or output of its own. The guest decides what comes, how often and in
which pieces, so every dimension that it could grow is bounded here: bytes of each stream, pieces, results,
bytes of results, the error's text. What is cut off is counted. Of each stream the record keeps the head and the
tail; the caller's stream of events is cut where the limit is reached, and gets what is kept of the rest at the end.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import overload

from fumehood.events import (
    ClearOutputEvent,
    CommEvent,
    ErrorEvent,
    Event,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.execution import Execution, ExecutionError, Logs, StreamName
from fumehood.kept_output import MAX_LOG_ENTRIES, KeptOutput
from fumehood.limits import MIB, Limits, Usage
from fumehood.models import NOTHING_CUT, Truncation
from fumehood.results import Result, fit_result, held_bytes
from fumehood.text import visible_line

__all__ = ["MAX_LOG_ENTRIES", "Transcript"]

# Bounds that are no limits of the caller: they keep a hostile guest from making the record itself expensive.
MAX_TOTAL_RESULT_BYTES = 64 * MIB
MAX_COMM_EVENTS = 20_000
MAX_ERROR_NAME_CHARACTERS = 200
MAX_ERROR_VALUE_CHARACTERS = 64 * 1024
MAX_TRACEBACK_CHARACTERS = 256 * 1024
MAX_PROMPT_CHARACTERS = 4 * 1024


class Transcript:
    """Records one execution.

    Args:
        execution_id: Its name.
        context_id: The context it runs in.
        limits: What may be kept of it.
        isolation: The level that it runs under.
        started_at: When it began, or None while it waits.
    """

    def __init__(
        self,
        *,
        execution_id: str,
        context_id: str,
        limits: Limits,
        isolation: str = "",
        started_at: datetime | None = None,
    ) -> None:
        self.started_at = started_at
        self._execution_id = execution_id
        self._context_id = context_id
        self._limits = limits
        self._isolation = isolation
        self._output = KeptOutput(limits.stdout_bytes, limits.stderr_bytes)
        self._results: list[Result] = []
        self._result_bytes = 0
        self._results_dropped = 0
        self._comm_events = 0
        self._comm_bytes = 0
        self._clear_before_next = False
        self._error: ExecutionError | None = None

    @property
    def error(self) -> ExecutionError | None:
        """The error that was recorded last."""
        return self._error

    def add(self, event: Event) -> Event | None:
        """Record an event and return what may be passed on of it: itself, a shortened one, or None."""
        match event:
            case StdoutEvent():
                return self._add_text("stdout", event)
            case StderrEvent():
                return self._add_text("stderr", event)
            case ResultEvent():
                return self._add_result(event)
            case ClearOutputEvent():
                return self._clear(event)
            case ErrorEvent():
                return self._add_error(event)
            case InputRequestEvent():
                return replace(event, prompt=event.prompt[:MAX_PROMPT_CHARACTERS])
            case CommEvent():
                return self._add_comm(event)
            case _:
                return event

    def held_back(self) -> list[StdoutEvent | StderrEvent]:
        """Return the kept output that `add` has not passed on, each piece once, for a stream that comes to its end."""
        return [
            (StdoutEvent if entry.stream == "stdout" else StderrEvent)(
                text=entry.text, at_seconds=entry.at_seconds
            )
            for entry in self._output.unpassed()
        ]

    def finish(
        self,
        *,
        usage: Usage,
        execution_count: int | None = None,
        error: ExecutionError | None = None,
        state_lost: bool = False,
        dropped_by_guest: Truncation | None = None,
    ) -> Execution:
        """Return the complete execution.

        Args:
            usage: What it used.
            execution_count: Its number in the context.
            error: Takes the place of what the code itself reported, when it was stopped from outside.
            state_lost: True when the context had to be replaced.
            dropped_by_guest: What the guest cut off before sending; added to what was cut off here.
        """
        return Execution(
            id=self._execution_id,
            context_id=self._context_id,
            results=tuple(self._results),
            logs=Logs(entries=tuple(self._output.entries())),
            error=_bounded(error) if error is not None else self._error,
            execution_count=execution_count,
            usage=usage,
            truncated=self._truncated(dropped_by_guest or NOTHING_CUT),
            state_lost=state_lost,
            isolation=self._isolation,
            started_at=self.started_at,
        )

    def _truncated(self, by_guest: Truncation) -> Truncation:
        stdout, stderr = self._output.dropped_bytes("stdout"), self._output.dropped_bytes("stderr")

        if not (by_guest or self._results_dropped or stdout or stderr):
            return NOTHING_CUT

        return Truncation(
            stdout_bytes=stdout + by_guest.stdout_bytes,
            stderr_bytes=stderr + by_guest.stderr_bytes,
            results=self._results_dropped + by_guest.results,
        )

    @overload
    def _add_text(self, stream: StreamName, event: StdoutEvent) -> StdoutEvent | None: ...
    @overload
    def _add_text(self, stream: StreamName, event: StderrEvent) -> StderrEvent | None: ...
    def _add_text(
        self, stream: StreamName, event: StdoutEvent | StderrEvent
    ) -> StdoutEvent | StderrEvent | None:
        text = self._output.add(stream, event.text, event.at_seconds)

        if not text:
            return None

        return event if text == event.text else replace(event, text=text)

    def _add_result(self, event: ResultEvent) -> ResultEvent | None:
        if self._clear_before_next:
            self._forget_results()

        result = fit_result(event.result, self._limits.result_bytes)
        place = self._place_of(result) if event.is_update else None
        freed = 0 if place is None else held_bytes(self._results[place])
        size_bytes = held_bytes(result)

        if self._result_bytes - freed + size_bytes > MAX_TOTAL_RESULT_BYTES or (
            place is None and len(self._results) >= self._limits.result_count
        ):
            self._results_dropped += 1
            return None

        self._result_bytes += size_bytes - freed

        if place is None:
            self._results.append(result)
        else:
            self._results[place] = result

        return event if result is event.result else replace(event, result=result)

    def _place_of(self, result: Result) -> int | None:
        if result.display_id is None:
            return None

        places = range(len(self._results))
        return next((place for place in places if self._results[place].display_id == result.display_id), None)

    def _add_comm(self, event: CommEvent) -> CommEvent | None:
        self._comm_events += 1
        self._comm_bytes += sum(map(len, event.buffers)) + len(json.dumps((event.data, event.metadata)))

        if self._comm_events <= MAX_COMM_EVENTS and self._comm_bytes <= MAX_TOTAL_RESULT_BYTES:
            return event

        self._results_dropped += 1
        return None

    def _clear(self, event: ClearOutputEvent) -> ClearOutputEvent:
        """Take the results away, as a notebook does; the logs stay, as the record of what happened."""
        if event.wait:
            self._clear_before_next = True
        else:
            self._forget_results()

        return event

    def _forget_results(self) -> None:
        self._results.clear()
        self._result_bytes = 0
        self._clear_before_next = False

    def _add_error(self, event: ErrorEvent) -> ErrorEvent:
        self._error = _bounded(event.error)
        return replace(event, error=self._error)


def _bounded(error: ExecutionError) -> ExecutionError:
    return ExecutionError(
        kind=error.kind,
        name=visible_line(error.name, max_characters=MAX_ERROR_NAME_CHARACTERS),
        value=_head(error.value, MAX_ERROR_VALUE_CHARACTERS),
        traceback=_head(error.traceback, MAX_TRACEBACK_CHARACTERS),
        # Ours, and short.
        hint=error.hint,
    )


def _head(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text

    return f"{text[:max_characters]}… ({len(text) - max_characters} characters cut off)"
