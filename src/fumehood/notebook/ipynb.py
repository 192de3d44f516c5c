"""Notebooks of nbformat 4.5: a record written as one, with outputs, usage and times; and a file read, with parameters.

Pure functions, but for reading the file. Outputs are a guest's bytes: text is made valid, numbers that JSON does not
know become null, and a format whose name is no media type is left out. Cells of a read file that are not run, and
unknown fields, stay unchanged, so that a notebook that is written again has lost nothing.
"""

from __future__ import annotations

import base64
import copy
import json
import keyword
import math
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
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


NotebookSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]

MAX_NOTEBOOK_BYTES = 256 * MIB
# Tags of papermill: the cell with the defaults, and the one with the given values.
_DEFAULTS_TAG = "parameters"
_GIVEN_TAG = "injected-parameters"
_MAX_DEPTH = 32


def read_notebook(source: NotebookSource) -> dict[str, Any]:
    """Return a notebook of nbformat 4, as JSON holds it.

    Args:
        source: A path, or the notebook itself, which is not changed.

    Raises:
        InvalidArgumentError: The source is not such a notebook, or its language is not Python.
        OSError: The file cannot be read.
    """
    # A number would be read, and closed, as a file descriptor that other code has opened.
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise InvalidArgumentError(
            field="notebook", value=source, allowed="a path, or a notebook as JSON holds it"
        )

    notebook = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else _loaded(source)
    shown = "a notebook" if isinstance(source, Mapping) else os.fspath(source)
    _check(notebook, shown)
    return notebook


def source_of(cell: Mapping[str, Any]) -> str:
    """Return the text of a cell, which files store whole or by lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def tags_of(cell: Mapping[str, Any]) -> frozenset[str]:
    """Return the tags of a cell."""
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, Mapping) else None
    return frozenset(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else frozenset()


def set_parameters(notebook: dict[str, Any], parameters: Mapping[str, Any]) -> None:
    """Insert a cell that sets variables after the cell with the tag `parameters`, or else before all others.

    A cell that was inserted earlier is replaced.

    Raises:
        InvalidArgumentError: A name is not a variable's name, or a value is not a JSON value.
    """
    if not parameters:
        return

    lines = [
        "# Parameters",
        *(f"{_checked_name(name)} = {_literal(name, value)}" for name, value in parameters.items()),
    ]
    cells: list[dict[str, Any]] = notebook["cells"]
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [_GIVEN_TAG]},
        "outputs": [],
        "source": "\n".join(lines),
    }

    if _has_ids(notebook):
        cell["id"] = _free_id(cells)

    old = next((number for number, other in enumerate(cells) if _GIVEN_TAG in tags_of(other)), None)

    if old is not None:
        cells[old] = cell
        return

    defaults = next((number for number, other in enumerate(cells) if _DEFAULTS_TAG in tags_of(other)), -1)
    cells.insert(defaults + 1, cell)


def read_value(text: str) -> Any:
    """Return the value of a parameter on the command line: a number, True, False, None, or its text."""
    words = {"True": True, "False": False, "None": None}

    if text in words:
        return words[text]

    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue

    return text


def _loaded(path: str | os.PathLike[str]) -> dict[str, Any]:
    with open(path, "rb") as file:
        content = file.read(MAX_NOTEBOOK_BYTES + 1)

    if len(content) > MAX_NOTEBOOK_BYTES:
        raise _refused(os.fspath(path), f"a notebook of at most {MAX_NOTEBOOK_BYTES} bytes")

    try:
        notebook = json.loads(content)
    except (ValueError, RecursionError):
        raise _refused(os.fspath(path), "a notebook: a file of JSON, as Jupyter writes them") from None

    if not isinstance(notebook, dict):
        raise _refused(os.fspath(path), "a notebook: an object of JSON, as Jupyter writes them")

    return notebook


def _check(notebook: dict[str, Any], shown: str) -> None:
    if notebook.get("nbformat") != 4:
        raise _refused(
            shown, "a notebook of nbformat 4; `jupyter nbconvert --to notebook` makes one of an older one"
        )

    cells = notebook.get("cells")

    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise _refused(shown, "a notebook whose cells are objects with a `cell_type` and a `source`")

    metadata = notebook.get("metadata")
    spec = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = spec.get("language", "python") if isinstance(spec, dict) else "python"

    if language != "python":
        raise _refused(shown, f"a notebook of Python, and this one is of {language!r}")


def _is_cell(cell: object) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return False

    source = cell.get("source")
    return isinstance(source, str) or (
        isinstance(source, list) and all(isinstance(line, str) for line in source)
    )


def _has_ids(notebook: Mapping[str, Any]) -> bool:
    minor = notebook.get("nbformat_minor")
    return isinstance(minor, int) and minor >= 5


def _free_id(cells: list[dict[str, Any]]) -> str:
    taken = {cell.get("id") for cell in cells}
    names = (_GIVEN_TAG if not number else f"{_GIVEN_TAG}-{number}" for number in range(len(cells) + 1))
    return next(name for name in names if name not in taken)


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidArgumentError(
            field="parameters", value=name, allowed="names that a variable of Python can have"
        )

    return name


def _literal(name: str, value: Any, depth: int = 0) -> str:
    """Returns the Python literal of a value; its parts are checked, so that no `repr` of another type is used."""
    if depth <= _MAX_DEPTH:
        match value:
            case float() if not math.isfinite(value):
                return f"float({str(value)!r})"
            case None | bool() | int() | float() | str():
                return ascii(value)
            case list() | tuple():
                return "[" + ", ".join(_literal(name, item, depth + 1) for item in value) + "]"
            case dict() if all(isinstance(key, str) for key in value):
                items = (f"{key!a}: {_literal(name, item, depth + 1)}" for key, item in value.items())
                return "{" + ", ".join(items) + "}"

    raise InvalidArgumentError(
        field=f"parameters[{name!r}]",
        value=type(value).__name__,
        allowed="text, a number, True, False, None, and lists and dicts of these",
    )


def _refused(shown: str, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field="notebook", value=shown, allowed=allowed)
