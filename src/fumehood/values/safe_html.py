"""HTML of a guest's results for a notebook on the host: text, pictures, tables.

All data of a guest is escaped or base64: nothing in it can become markup. Pure functions.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from fumehood.text import shortened, visible

_MAX_ROWS = 60
_MAX_COLUMNS = 30
_MAX_CELL_CHARACTERS = 100
_MAX_TEXT_CHARACTERS = 100_000
_ERROR_STYLE = ' style="color: #b00020"'


def preformatted(text: str, *, is_error: bool = False) -> str:
    """Return text as preformatted HTML, control characters escaped; cut off after 100,000 characters."""
    shown = escape(shortened(visible(text), _MAX_TEXT_CHARACTERS))
    return f"<pre{_ERROR_STYLE if is_error else ''}>{shown}</pre>"


def picture(mime: str, content: bytes) -> str:
    """Return a picture; a browser parses its bytes only as a picture.

    Args:
        mime: Its type, one of a fixed list and never the guest's text.
        content: Its bytes.
    """
    return f'<img src="data:{escape(mime)};base64,{base64.b64encode(content).decode()}">'


def table(columns: Mapping[str, Sequence[object]]) -> str:
    """Return a table: the first rows and columns of lists by column, and how many more there are."""
    names = list(columns)[:_MAX_COLUMNS]
    count = max(map(len, columns.values()), default=0)
    rows = [
        [columns[name][row] if row < len(columns[name]) else "" for name in names]
        for row in range(min(count, _MAX_ROWS))
    ]
    head = "".join(f"<th>{_cell(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    size = f"<p>{count:,} rows, {len(columns):,} columns</p>"
    is_cut = count > _MAX_ROWS or len(columns) > _MAX_COLUMNS
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{size if is_cut else ''}"


def _cell(value: object) -> str:
    return escape(shortened(visible("" if value is None else str(value)), _MAX_CELL_CHARACTERS))
