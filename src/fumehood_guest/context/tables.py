"""Tables: a DataFrame or Series of pandas as columns of plain values, beside the other formats of a result.

Runs in a context of Python, on values of user code: what JSON cannot hold becomes text or nothing, and a cut table is
marked as such.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

from fumehood_guest.context.bundles import json_safe

DATA_MIME = "application/vnd.fumehood.data+json"
_MAX_ROWS = 1_000
_MAX_COLUMNS = 100
_MAX_CELLS = 50_000
_MAX_TEXT_CHARACTERS = 1_000

Table = Tuple[Dict[str, List[Any]], Dict[str, Any]]


class TableFormatter(BaseFormatter):  # type: ignore[misc]
    """Describes a table as data."""

    format_type = Unicode(DATA_MIME)
    print_method = ObjectName("_repr_fumehood_data_")
    _return_type = dict


def register_tables(formatter: Any) -> None:
    """Registers the table formatter with IPython's display formatter."""
    tables = TableFormatter(parent=formatter)

    # From version 3 on, the classes of pandas report the module that exports them.
    for frames, series in (("pandas.core.frame", "pandas.core.series"), ("pandas", "pandas")):
        tables.for_type_by_name(frames, "DataFrame", _describe_frame)
        tables.for_type_by_name(series, "Series", _describe_series)

    formatter.formatters[DATA_MIME] = tables


def _describe_frame(frame: Any) -> Optional[Table]:
    """Returns the columns of a DataFrame, without its index."""
    total_rows, total_columns = frame.shape
    columns = min(total_columns, _MAX_COLUMNS)
    rows = min(total_rows, _MAX_ROWS, _MAX_CELLS // max(1, columns))
    part = frame.iloc[:rows, :columns]
    data: Dict[str, List[Any]] = {}

    for index, label in enumerate(part.columns):
        data[_unused_name(_name(label), data)] = _values(part.iloc[:, index])

    is_cut = rows < total_rows or columns < total_columns
    return data, {"rows": total_rows, "columns": total_columns, "truncated": is_cut}


def _describe_series(series: Any) -> Optional[Table]:
    """Returns a Series, preceded by its index unless that is a plain range."""
    total = len(series)
    part = series.iloc[:_MAX_ROWS]
    data: Dict[str, List[Any]] = {}

    if type(series.index).__name__ != "RangeIndex":
        data[_name(series.index.name, "index")] = _values(part.index)

    data[_unused_name(_name(series.name, "value"), data)] = _values(part)
    return data, {"rows": total, "columns": len(data), "truncated": total > len(part)}


def _values(column: Any) -> List[Any]:
    values = column.tolist()
    kind = getattr(column.dtype, "kind", "O")

    if kind in "bi":
        return [value if isinstance(value, (bool, int)) else _cell(value) for value in values]

    if kind == "f":
        return [
            value if isinstance(value, float) and math.isfinite(value) else _cell(value) for value in values
        ]

    return [_cell(value) for value in values]


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT_CHARACTERS else f"{value[:_MAX_TEXT_CHARACTERS]}..."

    # pandas.NA and NaT: comparing them with themselves is of no use.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None

    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _cell(str(value))

    plain = json_safe(value)
    return _cell(plain) if isinstance(plain, str) else plain


def _name(label: Any, default: str = "") -> str:
    if label is None:
        return default

    return " ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _unused_name(name: str, data: Dict[str, Any]) -> str:
    """Returns the name, with a number appended if the table has it twice."""
    candidate, count = name, 0

    while candidate in data:
        count += 1
        candidate = f"{name}.{count}"

    return candidate
