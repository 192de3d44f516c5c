"""A record as one page of HTML without external resources, in which no code from a guest can run.

Pure functions. All text is escaped and its control characters spelled out. Of a cell's results, pictures appear as data
URLs, which run no script, tables from their data, and the rest as plain text: HTML, JavaScript and Markdown of a guest
never become part of the page. A content policy also forbids scripts and every address.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from fumehood.text import visible
from fumehood.values.execution import Execution, Record, RecordedCell
from fumehood.values.results import Result

# Type and the bytes that such a file begins with; an SVG in an `img` runs no script and loads nothing.
_PICTURES = (
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/svg+xml", b""),
)
_MAX_TABLE_ROWS = 50
_MAX_TABLE_COLUMNS = 50
_MAX_VALUE_CHARACTERS = 200
_MAX_TEXT_CHARACTERS = 1_000_000
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1f; }
pre { margin: 0; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
      font: 13px/1.5 ui-monospace, monospace; }
section { margin: 1.5rem 0; border: 1px solid #d8d8e0; border-radius: 6px; overflow: hidden; }
header { padding: .3rem .8rem; background: #f0f0f5; font-size: .8rem; color: #555; }
.code { background: #fafafc; border-bottom: 1px solid #e8e8ee; }
.stderr, .note { background: #fff8e6; } .error { background: #fdeaea; }
img { display: block; max-width: 100%; margin: .6rem; }
table { border-collapse: collapse; margin: .6rem; font: 13px ui-monospace, monospace; }
th, td { border: 1px solid #d8d8e0; padding: .15rem .5rem; text-align: right; }
"""


def report_of(record: Record) -> str:
    """Return the page of a record."""
    title = f"Context {record.context_id} of the sandbox {record.sandbox_id}"
    missing = ""

    if record.dropped_cells or record.dropped_outputs:
        missing = _pre(
            f"{record.dropped_cells} older cells are missing, and {record.dropped_outputs} have lost their outputs:"
            " the record is bounded.",
            "note",
        )

    cells = "\n".join(_cell(cell, number) for number, cell in enumerate(record.cells, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
        f"<p>Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {len(record.cells)} cells.</p>\n{missing}{cells}\n"
        "</body>\n</html>\n"
    )


def _cell(cell: RecordedCell, number: int) -> str:
    execution = cell.execution
    parts = [_pre(cell.code, "code")]
    parts += [_pre(entry.text, entry.stream) for entry in _merged(execution)]
    parts += [_result(result) for result in execution.results]

    if execution.error is not None:
        parts.append(_pre(str(execution.error), "error"))

    notes = _notes(cell)

    if notes:
        parts.append(_pre("\n".join(notes), "note"))

    return f"<section>\n<header>{_head(execution, number)}</header>\n" + "\n".join(parts) + "\n</section>"


def _head(execution: Execution, number: int) -> str:
    began = "" if execution.started_at is None else f", {execution.started_at:%Y-%m-%d %H:%M:%S} UTC"
    count = number if execution.execution_count is None else execution.execution_count
    return f"[{count}] {execution.usage.wall_seconds:.3f} s{began}"


def _notes(cell: RecordedCell) -> list[str]:
    truncated = cell.execution.truncated
    cut = truncated.stdout_bytes + truncated.stderr_bytes
    return [
        *(["What it did was undone."] if cell.is_undone else []),
        *(["The outputs are no longer in the record."] if cell.outputs_dropped else []),
        *([f"{cut} bytes of output were cut off."] if cut else []),
        *([f"{truncated.results} results were dropped."] if truncated.results else []),
        *(["The context was replaced: its variables were lost."] if cell.execution.state_lost else []),
    ]


class _Piece:
    """Neighbouring output of one stream."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)


def _merged(execution: Execution) -> list[_Piece]:
    pieces: list[_Piece] = []

    for entry in execution.logs.entries:
        if not pieces or pieces[-1].stream != entry.stream:
            pieces.append(_Piece(entry.stream))

        pieces[-1].texts.append(entry.text)

    return pieces


def _result(result: Result) -> str:
    for mime, beginning in _PICTURES:
        part = result.parts.get(mime)

        if part is not None and part.startswith(beginning):
            return f'<img alt="" src="data:{mime};base64,{base64.b64encode(part).decode()}">'

    table = _table(result)
    return _pre(result.text or str(result), "result") if table is None else table


def _table(result: Result) -> str | None:
    columns = result.data

    if not columns:
        return None

    shown = dict(list(columns.items())[:_MAX_TABLE_COLUMNS])
    rows = max(len(column) for column in columns.values())
    head = "".join(f"<th>{_value(name)}</th>" for name in shown)
    body = "".join(
        "<tr>" + "".join(f"<td>{_value(_at(column, row))}</td>" for column in shown.values()) + "</tr>\n"
        for row in range(min(rows, _MAX_TABLE_ROWS))
    )
    more = (
        f"<p>{rows} rows, {len(columns)} columns</p>"
        if rows > _MAX_TABLE_ROWS or len(columns) > len(shown)
        else ""
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>{more}"


def _at(column: Sequence[object], row: int) -> object:
    return column[row] if row < len(column) else None


def _value(value: object) -> str:
    return "" if value is None else _text(str(value)[:_MAX_VALUE_CHARACTERS])


def _pre(text: str, kind: str) -> str:
    shown = text[:_MAX_TEXT_CHARACTERS]
    cut = f"\n({len(text) - len(shown)} characters more)" if len(text) > len(shown) else ""
    return f'<pre class="{kind}">{_text(shown + cut)}</pre>'


def _text(text: str) -> str:
    return escape(visible(text), quote=True)
