"""Output and results of code, as E2B's code interpreter writes them: one line of JSON for each event.

Pure functions. Parts of results come from the guest: text stays text, bytes become base64, and a part that does not
have its claimed type is left out.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from fumehood.off_loop import json_in_pieces
from fumehood.values.charts import Chart, SuperChart, UnknownChart
from fumehood.values.events import ErrorEvent, Event, ExecutionFinished, ResultEvent, StderrEvent, StdoutEvent
from fumehood.values.execution import ExecutionError
from fumehood.values.plain_data import as_data
from fumehood.values.results import Result
from fumehood.values.sandbox import Truncation

KEEPALIVE_LINE = b'{"type":"keepalive"}\n'
_NAMES = ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data")
_QUOTES = ("'", '"')


def event_lines(event: Event, language: str = "") -> bytes:
    """Returns the lines for an event of code in this language; most have one, some none."""
    return b"".join(_line(item) for item in _items(event, language))


def _items(event: Event, language: str) -> list[dict[str, Any]]:
    match event:
        case StdoutEvent():
            pieces = _pieces(event.text) if language == "java" else (event.text,)
            return [{"type": "stdout", "text": piece, "timestamp": time.time_ns()} for piece in pieces]
        case StderrEvent():
            return [{"type": "stderr", "text": event.text, "timestamp": time.time_ns()}]
        case ResultEvent(is_update=False):
            return [{"type": "result", **result_data(event.result)}]
        case ErrorEvent():
            return [error_data(event.error)]
        case ExecutionFinished():
            return _last(event)

    return []


def _pieces(text: str) -> tuple[str, ...]:
    """Returns the printed text and its final line end as two pieces, as E2B's Java kernel sends them."""
    return (text[:-1], "\n") if len(text) > 1 and text.endswith("\n") else (text,)


def _last(event: ExecutionFinished) -> list[dict[str, Any]]:
    count = event.execution.execution_count
    # Dropped text is reported at its place in the text.
    dropped = dropped_text(Truncation(results=event.execution.truncated.results))
    said = [{"type": "stderr", "text": f"[{dropped}]\n", "timestamp": time.time_ns()}] if dropped else []
    counted = [] if count is None else [{"type": "number_of_executions", "execution_count": count}]
    end = "unexpected_end_of_execution" if event.execution.state_lost else "end_of_execution"
    return [*said, *counted, {"type": end}]


def error_data(error: ExecutionError) -> dict[str, Any]:
    """Returns the error that ended the code."""
    return {"type": "error", "name": error.name, "value": error.value, "traceback": str(error)}


def result_data(result: Result) -> dict[str, Any]:
    """Returns a result as E2B's clients expect it: its value in each format, by the name of the format."""
    data: dict[str, Any] = {"is_main_result": result.is_main_result}

    if result.text is not None:
        data["text"] = unquoted(result.text)

    for name in _NAMES:
        if (value := as_data(getattr(result, name))) is not None:
            data[name] = value

    if result.chart is not None:
        data["chart"] = chart_data(result.chart)

    if result.extra:
        data["extra"] = {mime: _text_or_base64(part) for mime, part in result.extra.items()}

    return data


def chart_data(chart: Chart) -> dict[str, Any]:
    """Returns a chart; E2B's clients need elements of every kind, also of an unknown one."""
    if isinstance(chart, SuperChart):
        return {
            "type": chart.type,
            "title": chart.title,
            "elements": [chart_data(item) for item in chart.elements],
        }

    data = as_data(chart)
    assert isinstance(data, dict)
    return {**data, "elements": []} if isinstance(chart, UnknownChart) else data


def unquoted(text: str) -> str:
    """Returns the repr of a text without its quotes, as E2B shows it."""
    return text[1:-1] if len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0] else text


def _text_or_base64(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return base64.b64encode(part).decode()


def _line(item: dict[str, Any]) -> bytes:
    return json_in_pieces(item, is_ascii=True).encode() + b"\n"


def dropped_text(truncated: Truncation) -> str:
    """Returns a text about the dropped output; empty if there is none."""
    counts = {
        "bytes of stdout": truncated.stdout_bytes,
        "bytes of stderr": truncated.stderr_bytes,
        "results": truncated.results,
    }
    lost = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{', '.join(lost)} dropped because of the sandbox's limits" if lost else ""
