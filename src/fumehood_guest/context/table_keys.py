"""The columns or labels of the pandas table in which a key was missing, as a line of the traceback.

Runs in a context, on frames of hostile code. Only pandas' own classes are asked, only texts and numbers are shown, and
both their count and their length are bounded; a failure gives no line.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, List, Optional

_MAX_KEYS = 20
_MAX_KEY_CHARACTERS = 60
_MAX_FRAMES = 200
# The locals of pandas' functions that hold the table or its labels.
_HOLDERS = ("self", "obj")


def existing_keys(tb: Optional[TracebackType]) -> List[str]:
    """Returns a line with the keys that there are; none if the key was missing elsewhere than in a table."""
    pandas: Any = sys.modules.get("pandas")

    if pandas is None:
        return []

    try:
        labels = _labels(pandas, tb)
        return [] if labels is None else [_described(labels)]
    except Exception:
        return []


def _labels(pandas: Any, tb: Optional[TracebackType]) -> Any:
    """Returns the labels that the innermost frames of pandas have searched."""
    found = None

    for _ in range(_MAX_FRAMES):
        if tb is None:
            break

        for name in _HOLDERS if _is_of_pandas(tb) else ():
            holder = tb.tb_frame.f_locals.get(name)

            if isinstance(holder, pandas.Index):
                found = holder
            elif isinstance(holder, pandas.DataFrame):
                found = holder.columns

        tb = tb.tb_next

    return found


def _is_of_pandas(tb: TracebackType) -> bool:
    return str(tb.tb_frame.f_globals.get("__name__", "")).startswith("pandas.")


def _described(labels: Any) -> str:
    keys = [
        repr(key)[:_MAX_KEY_CHARACTERS]
        for key in labels[:_MAX_KEYS].tolist()
        if type(key) in (str, int, float)
    ]
    more = len(labels) - len(keys)
    return f"There are: {', '.join(keys) or 'no keys'}{f', and {more:,} more' if more > 0 else ''}"
