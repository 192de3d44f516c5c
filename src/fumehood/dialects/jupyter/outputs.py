"""Events of an execution as messages of Jupyter, which front ends show.

Pure functions. The text and the bundles come from a guest: they are passed on as data, never parsed beyond their
type.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from fumehood.errors import FumehoodError
from fumehood.values.events import ClearOutputEvent, CommEvent, Event, ResultEvent, StderrEvent, StdoutEvent
from fumehood.values.execution import Execution, ExecutionError
from fumehood.values.results import CHART_MIME, DATA_MIME, Result, read_json

# They are for our own clients: a notebook would store each figure twice.
_NOT_SHOWN = frozenset({CHART_MIME, DATA_MIME})
_BINARY_KINDS = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")


class Output(NamedTuple):
    """One message on iopub that is still without a header."""

    msg_type: str
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] = {}
    buffers: tuple[bytes, ...] = ()


def output_of(event: Event, execution_count: int) -> Output | None:
    """Returns the message of an event for front ends, or None for events that have other places.

    Args:
        event: The event.
        execution_count: The number of the execution.
    """
    match event:
        case StdoutEvent():
            return Output("stream", {"name": "stdout", "text": event.text})
        case StderrEvent():
            return Output("stream", {"name": "stderr", "text": event.text})
        case ClearOutputEvent():
            return Output("clear_output", {"wait": event.wait})
        case ResultEvent():
            return _result(event, execution_count)
        case CommEvent():
            content: dict[str, Any] = {"comm_id": event.comm_id, "data": event.data}

            if event.kind == "comm_open":
                content["target_name"] = event.target_name

            return Output(event.kind, content, event.metadata, event.buffers)
        case _:
            return None


def error_content(error: ExecutionError) -> dict[str, Any]:
    """Returns the content of an `error` message, which a failed `execute_reply` repeats."""
    # Front ends recognise an interrupt by this name.
    name = "KeyboardInterrupt" if error.kind == "interrupted" else error.name
    lines = error.traceback.split("\n") if error.traceback else [f"{name}: {error.value}"]
    return {"ename": name, "evalue": error.value, "traceback": lines}


def refusal_content(error: FumehoodError) -> dict[str, Any]:
    """Returns the content of an `error` message for code that was not run, or whose sandbox failed."""
    name = type(error).__name__
    return {"ename": name, "evalue": error.message, "traceback": [f"{name}: {error}"]}


def truncation_note(execution: Execution) -> Output | None:
    """Returns the message about results over the limits, or None if there were none.

    Dropped text is reported at its place in the text.
    """
    if not execution.truncated.results:
        return None

    text = f"\n[left out over the limits: {execution.truncated.results:,} results]\n"
    return Output("stream", {"name": "stderr", "text": text})


def bundle_data(result: Result) -> dict[str, Any]:
    """Returns a result in Jupyter's form: text as text, JSON as values, everything else in base64."""
    shown = {mime: _part(mime, part) for mime, part in result.parts.items() if mime not in _NOT_SHOWN}
    return {mime: value for mime, value in shown.items() if value is not None}


def _part(mime: str, part: bytes) -> Any:
    if mime == "application/json" or mime.endswith("+json"):
        return read_json(part)

    if mime.startswith(_BINARY_KINDS) and not mime.endswith("+xml"):
        return base64.b64encode(part).decode()

    return part.decode("utf-8", "replace")


def _result(event: ResultEvent, execution_count: int) -> Output:
    result = event.result
    content: dict[str, Any] = {"data": bundle_data(result), "metadata": result.metadata}

    if result.is_main_result:
        return Output("execute_result", {**content, "execution_count": execution_count})

    content["transient"] = {} if result.display_id is None else {"display_id": result.display_id}
    return Output("update_display_data" if event.is_update else "display_data", content)
