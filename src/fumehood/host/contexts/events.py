"""What a context shows and says, as events: one message of the wire, one event.

Runs in the host process. The messages have passed the wire's tables and its states; what they hold is a guest's all
the same, and becomes plain values that nobody executes. Knows no execution: questions and calls, which need one,
are made into events where it is known.
"""

from __future__ import annotations

from typing import Any

from fumehood.changes import VariableChange
from fumehood.events import ClearOutputEvent, ErrorEvent, Event, ResultEvent, StderrEvent, StdoutEvent
from fumehood.execution import ExecutionError
from fumehood.failure_hints import explain_failure
from fumehood.host.contexts.comms import KINDS as COMM_KINDS
from fumehood.host.contexts.comms import comm_event
from fumehood.results import Result
from fumehood_wire import messages, payloads

Header = dict[str, Any]


def event_of(header: Header, payload: bytes, at_seconds: float) -> Event:
    """Returns what a message of an execution means.

    Raises:
        ProtocolError: The payload is not what such a message holds.
    """
    message_type = header["type"]

    if message_type == "stream":
        kind = StdoutEvent if header["name"] == "stdout" else StderrEvent
        return kind(text=messages.read_text(payload), at_seconds=at_seconds)

    if message_type == "clear_output":
        return ClearOutputEvent(at_seconds=at_seconds, wait=header["wait"])

    if message_type == "error":
        name, value = header["ename"], header["evalue"]
        traceback = "\n".join(messages.parse_traceback(payload))
        found = explain_failure(name, value, traceback)
        error = ExecutionError(
            kind="exception", name=name, value=value, traceback=traceback, hint=found.text if found else ""
        )
        return ErrorEvent(error=error, at_seconds=at_seconds)

    if message_type in COMM_KINDS:
        return comm_event(header, payload, at_seconds)

    result = Result(
        parts=dict(messages.split_parts(header, payload)),
        metadata=header["metadata"],
        is_main_result=message_type == "execute_result",
        display_id=header.get("display_id"),
        truncated=dict(header.get("truncated", ())),
    )
    return ResultEvent(result=result, at_seconds=at_seconds, is_update=message_type == "update_display_data")


def read_changes(payload: bytes) -> tuple[VariableChange, ...]:
    """Returns what a cell has changed, as it says.

    Raises:
        ProtocolError: The payload is not that.
    """
    return tuple(VariableChange(**change) for change in payloads.parse_changes(payload))


def read_telemetry(payload: bytes) -> tuple[str, ...]:
    """Returns what code in a context has done there, as it says: one line each.

    Raises:
        ProtocolError: The payload is not that.
    """
    return tuple(
        f"{said['event']} {said['detail']}".rstrip()
        + (f" ({said['count']:,} times)" if said["count"] > 1 else "")
        for said in payloads.parse_telemetry(payload)
    )
