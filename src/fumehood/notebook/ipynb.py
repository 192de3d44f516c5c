"""A record as a notebook of nbformat 4.5: its cells with all their outputs, usage and times.

Pure functions. Outputs are a guest's bytes: text is made valid, numbers that JSON does not know become null, and a
format whose name is no media type is left out. A front end decides whether it trusts the HTML in it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from fumehood.values.charts import JsonValue
from fumehood.values.execution import Execution, ExecutionError, LogEntry, Record, RecordedCell
from fumehood.values.plain_data import as_data
from fumehood.values.results import Result, read_json

_MIME = re.compile(r"[a-z0-9]+/[a-z0-9][a-z0-9.+_-]{0,100}", re.ASCII)
_TEXTS = frozenset({"image/svg+xml", "application/javascript", "application/x-latex"})


def notebook_of(record: Record) -> dict[str, Any]:
    """Return the notebook of a record, as JSON holds it."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            "fumehood": {
                "sandbox_id": record.sandbox_id,
                "context_id": record.context_id,
                "dropped_cells": record.dropped_cells,
                "dropped_outputs": record.dropped_outputs,
            },
        },
        "cells": [
            _cell(cell, number + record.dropped_cells, record.language)
            for number, cell in enumerate(record.cells, 1)
        ],
    }


def notebook_text(notebook: dict[str, Any]) -> str:
    """Return the file of a notebook."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def outputs_of(execution: Execution) -> list[dict[str, Any]]:
    """Return the output, results and error of a cell, in this order."""
    outputs: list[dict[str, Any]] = list(_streams(execution.logs.entries))
    shown = [result for result in execution.results if not result.is_main_result]
    returned = [result for result in execution.results if result.is_main_result]
    outputs += [_shown(result) for result in shown]
    outputs += [_returned(result, execution.execution_count) for result in returned]

    if execution.error is not None:
        outputs.append(_error(execution.error))

    return outputs


def times_of(execution: Execution) -> dict[str, str]:
    """Return the start and end times of a cell, as notebooks store them."""
    if execution.started_at is None:
        return {}

    ended_at = execution.started_at + timedelta(seconds=execution.usage.wall_seconds)
    return {
        "iopub.execute_input": execution.started_at.isoformat(),
        "iopub.status.idle": ended_at.isoformat(),
        "shell.execute_reply": ended_at.isoformat(),
    }


def facts_of(execution: Execution) -> dict[str, Any]:
    """Return the metadata of a cell beyond its outputs."""
    facts: dict[str, Any] = {"usage": as_data(execution.usage), "isolation": execution.isolation}

    if execution.truncated:
        facts["truncated"] = as_data(execution.truncated)

    if execution.transaction is not None:
        facts["transaction"] = as_data(execution.transaction)

    if execution.state_lost:
        facts["state_lost"] = True

    return facts


def _cell(cell: RecordedCell, number: int, language: str) -> dict[str, Any]:
    execution = cell.execution
    facts = facts_of(execution) | {"is_fresh": cell.is_fresh}

    if cell.outputs_dropped:
        facts["outputs_dropped"] = True

    metadata: dict[str, Any] = {"execution": times_of(execution), "fumehood": facts}

    if cell.is_undone:
        # A second run of the notebook leaves it out, and reaches the same state.
        metadata["tags"] = ["undone", "skip-execution"]

    source = cell.code if language == "python" else f"%%{language}\n{cell.code}"
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "execution_count": execution.execution_count,
        "metadata": metadata,
        "source": _valid(source),
        "outputs": outputs_of(execution),
    }


def _streams(entries: tuple[LogEntry, ...]) -> Iterator[dict[str, Any]]:
    """Joins neighbouring pieces of one stream to one output."""
    texts: list[str] = []

    for number, entry in enumerate(entries):
        texts.append(entry.text)
        is_last = number + 1 == len(entries) or entries[number + 1].stream != entry.stream

        if is_last:
            yield {"output_type": "stream", "name": entry.stream, "text": _valid("".join(texts))}
            texts = []


def _shown(result: Result) -> dict[str, Any]:
    return {
        "output_type": "display_data",
        "data": _bundle(result),
        "metadata": _finite(dict(result.metadata)),
    }


def _returned(result: Result, count: int | None) -> dict[str, Any]:
    return {**_shown(result), "output_type": "execute_result", "execution_count": count}


def _error(error: ExecutionError) -> dict[str, Any]:
    return {
        "output_type": "error",
        "ename": _valid(error.name),
        "evalue": _valid(error.value),
        "traceback": _valid(str(error)).split("\n"),
    }


def _bundle(result: Result) -> dict[str, Any]:
    parts = {mime: _part(mime, part) for mime, part in result.parts.items() if _MIME.fullmatch(mime)}
    return {mime: part for mime, part in parts.items() if part is not None}


def _part(mime: str, part: bytes) -> Any:
    if mime.endswith("json"):
        return _finite(read_json(part))

    if mime.startswith("text/") or mime in _TEXTS:
        return part.decode("utf-8", "replace")

    return base64.b64encode(part).decode()


def _valid(text: str) -> str:
    """Returns text that can be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _finite(value: JsonValue) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return _valid(value)
        case list():
            return [_finite(item) for item in value]
        case dict():
            return {_valid(name): _finite(item) for name, item in value.items()}
        case _:
            return value
