"""Turns the events of an execution into events of a feed.

Runs in the host process, on the engine's loop, for each event of a sandbox that is followed. The content of results is
left out: followers request the results that they show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fumehood.engine.cells import CellInProgress, outcome_of, summary_of
from fumehood.engine.feed import Feed
from fumehood.engine.records import Recorder
from fumehood.values.charts import JsonValue
from fumehood.values.events import (
    ClearOutputEvent,
    CommitRequestEvent,
    ErrorEvent,
    Event,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
    ToolCallEvent,
)
from fumehood.values.execution import Execution
from fumehood.values.plain_data import as_data, fields_data


class Runner(Protocol):
    """A runner of executions, one at a time."""

    underway: CellInProgress | None


def feeding(feed: Feed, runner: Runner, emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """Returns a function that calls `emit` and then puts the event into the feed."""

    def emit_and_feed(event: Event) -> None:
        emit(event)

        if feed.is_live and runner.underway is not None:
            feed_event(feed, runner.underway, event)

    return emit_and_feed


def feed_abandoned_end(feed: Feed, recorder: Recorder, underway: CellInProgress | None) -> None:
    """Puts the end of an execution without an outcome into the feed: caller cancelled, or sandbox ended."""
    if underway is not None and feed.is_live:
        found = recorder.find(underway.execution_id)
        execution = underway.execution() if found is None else found[2].execution
        feed_end(feed, execution, underway.position)


def feed_event(feed: Feed, underway: CellInProgress, event: Event) -> None:
    """Puts an event of an execution into the feed of its sandbox."""
    name: dict[str, JsonValue] = {"execution_id": underway.execution_id}

    match event:
        case StdoutEvent():
            feed.put_output(underway.execution_id, "stdout", event.text, event.at_seconds)
        case StderrEvent():
            feed.put_output(underway.execution_id, "stderr", event.text, event.at_seconds)
        case ExecutionStarted():
            begun = underway.begun()
            feed.put("execution_started", name | begun, len(str(begun["code"])))
        case ResultEvent():
            summary = fields_data(summary_of(underway.number_of(event), event.result))
            feed.put(
                "result", name | summary | {"is_update": event.is_update, "at_seconds": event.at_seconds}
            )
        case ClearOutputEvent():
            feed.put("clear_output", name | {"wait": event.wait, "at_seconds": event.at_seconds})
        case ErrorEvent():
            size = len(event.error.traceback) + len(event.error.value)
            feed.put("error", name | {"error": as_data(event.error), "at_seconds": event.at_seconds}, size)
        case InputRequestEvent() | ToolCallEvent():
            kind = "input_request" if isinstance(event, InputRequestEvent) else "tool_call"
            fields = fields_data(event)
            # Arguments of a tool are left out: they may be large, and are for its caller alone.
            fields.pop("arguments", None)
            feed.put(kind, fields, len(str(fields)))
        case CommitRequestEvent():
            fields = fields_data(event)
            feed.put("commit_request", fields, len(str(fields)))


def feed_end(feed: Feed, execution: Execution, position: int) -> None:
    """Puts the end of an execution into the feed of its sandbox."""
    feed.put(
        "execution_finished",
        {
            "execution_id": execution.id,
            "context_id": execution.context_id,
            "outcome": outcome_of(execution),
            "usage": as_data(execution.usage),
            "execution_count": execution.execution_count,
            "state_lost": execution.state_lost,
            "position": position,
        },
    )
