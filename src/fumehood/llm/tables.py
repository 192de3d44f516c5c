"""A data frame in few words: its size, its columns with their kinds, and its first and last rows as pandas prints them.

The description comes from the guest, so numbers are checked to be numbers and names are shown as bounded lines; large
tables are never read whole only to be described.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fumehood import Result
from fumehood.llm.readable_text import counted, readable_ends, shorten
from fumehood.text import visible_line

_DATA_MIME = "application/vnd.fumehood.data+json"
# Parsing JSON costs time on the host; pandas' own text has the size as well.
_MAX_DATA_BYTES = 256 * 1024
_MAX_COLUMNS = 40
_MAX_NAME_CHARS = 60
_MAX_TEXT_CHARS = 4_000
_LOOKED_AT = 50


def preview_table(result: Result) -> str:
    """Return the text of a table for a model, or an empty text if the result is none."""
    if _DATA_MIME not in result.parts and _DATA_MIME not in result.truncated:
        return ""

    shown = shorten(readable_ends(result.text or "", _MAX_TEXT_CHARS), _MAX_TEXT_CHARS)

    if len(result.parts.get(_DATA_MIME, b"")) > _MAX_DATA_BYTES or not result.data:
        return shown

    columns = result.data
    rows, width = _size(result.metadata, columns)
    return (
        f"Table of {counted(rows, 'row')} and {counted(width, 'column')}: {_columns(columns, width)}\n{shown}"
    )


def _size(metadata: Mapping[str, object], columns: Mapping[str, Sequence[object]]) -> tuple[int, int]:
    """Return rows and columns as the guest counted them; an impossible count is replaced by that of the data sent."""
    sent_rows, sent_columns = max(map(len, columns.values())), len(columns)
    own = metadata.get(_DATA_MIME)
    said = own if isinstance(own, dict) else metadata
    rows, width = said.get("rows"), said.get("columns")
    return (
        rows if type(rows) is int and rows >= sent_rows else sent_rows,
        width if type(width) is int and width >= sent_columns else sent_columns,
    )


def _columns(columns: Mapping[str, Sequence[object]], width: int) -> str:
    shown = [
        f"{visible_line(name, max_characters=_MAX_NAME_CHARS)} ({_kind(values)})"
        for name, values in list(columns.items())[:_MAX_COLUMNS]
    ]
    more = width - len(shown)
    return ", ".join(shown) + (f", and {more:,} more" if more > 0 else "")


def _kind(values: Sequence[object]) -> str:
    """Return the kind of a column's values, by the first ones."""
    kinds = {type(value) for value in values[:_LOOKED_AT] if value is not None}

    if not kinds:
        return "empty"

    if kinds == {bool}:
        return "bool"

    if kinds == {int}:
        return "int"

    if kinds <= {int, float}:
        return "float"

    return "text" if kinds == {str} else "mixed"
