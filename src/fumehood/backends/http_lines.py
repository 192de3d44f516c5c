"""Lines of a server's streams back to the events that they are written from.

Runs in the process that asks a server.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from fumehood.backends.requests import ProcessEvent, ProcessExited, ProcessOutput
from fumehood.deserialise import DataError, read_value
from fumehood.events import (
    ClearOutputEvent,
    CommEvent,
    CommitRequestEvent,
    ErrorEvent,
    Event,
    ExecutionFinished,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
    ToolCallEvent,
)

_EVENTS: dict[str, type[Event]] = {
    "started": ExecutionStarted,
    "stdout": StdoutEvent,
    "stderr": StderrEvent,
    "result": ResultEvent,
    "clear_output": ClearOutputEvent,
    "error": ErrorEvent,
    "input_request": InputRequestEvent,
    "tool_call": ToolCallEvent,
    "comm": CommEvent,
    "commit_request": CommitRequestEvent,
    "finished": ExecutionFinished,
}


def event_of(line: dict[str, Any]) -> Event:
    """Returns the event of an execution that a line stands for; raises DataError for none."""
    kind = _EVENTS.get(str(line.get("type")))

    if kind is None:
        raise DataError(f"a line of type {line.get('type')!r} is not known")

    return read_value(kind, line)


def process_event_of(line: dict[str, Any]) -> ProcessEvent:
    """Returns the event of a command that a line stands for; raises DataError for none."""
    kind = line.get("type")

    if kind == "exited":
        return read_value(ProcessExited, line)

    if kind not in ("stdout", "stderr", "pty"):
        raise DataError(f"a line of type {kind!r} is not known")

    if isinstance(text := line.get("text"), str):
        return ProcessOutput(stream=kind, data=text.encode())

    try:
        return ProcessOutput(stream=kind, data=base64.b64decode(str(line.get("data")), validate=True))
    except (ValueError, binascii.Error):
        raise DataError("a line has neither text nor bytes") from None
