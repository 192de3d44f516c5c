"""Reads a notebook file: checks the used parts, and sets its parameters.

Used in the user's process; pure but for reading the file. Cells that are not run, and unknown fields, stay unchanged,
so that a notebook that is written again has lost nothing.
"""

from __future__ import annotations

import copy
import json
import keyword
import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError

NotebookSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]

MAX_NOTEBOOK_BYTES = 256 * MIB
# Tags of papermill: the cell with the defaults, and the one with the given values.
_DEFAULTS_TAG = "parameters"
_GIVEN_TAG = "injected-parameters"
_MAX_DEPTH = 32


def read_notebook(source: NotebookSource) -> dict[str, Any]:
    """Return a notebook of nbformat 4, as JSON holds it.

    Args:
        source: A path, or the notebook itself, which is left as it is.

    Raises:
        InvalidArgumentError: It is no such notebook, or one of another language than Python.
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
    """Put a cell that sets variables behind the one with the tag `parameters`, or else before all others.

    A cell that was put there before is replaced.

    Raises:
        InvalidArgumentError: A name is none that a variable can have, or a value is none that JSON has.
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
    """Returns the Python literal of a value, whose parts are checked, so that no other `repr` gets in."""
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
