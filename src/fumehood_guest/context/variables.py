"""Variables: the names of a namespace with descriptions of their objects, made without running user code.

Runs in a context, between cells, when the host asks. `fingerprints` defines how an object is examined; a list and the
details of one variable are bounded in number, size and time. Properties that only code of the object's class could
compute are left out.
"""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import Any, Dict, List, Mapping, Tuple

from fumehood_guest.export.fingerprints import (
    digest,
    elements_of,
    size_of,
    summary,
    table_of,
    type_name,
)
from fumehood_wire.messages import (
    MAX_CHUNK_BYTES,
    MAX_SHOWN_CHARS,
    MAX_SHOWN_ITEMS,
    MAX_VARIABLE_CHARS,
    MAX_VARIABLES,
)

# Of processor time: a pause of the process must not shorten what is found. With marks it takes longer; the host waits
# for two seconds.
_LOOK_SECONDS = 0.2
_MARK_SECONDS = 1.0
# User code may replace what `time` holds.
_thread_seconds = time.thread_time

Described = Dict[str, Any]


def list_variables(
    namespace: Mapping[str, Any], hidden: Mapping[str, Any], *, marks: bool = False
) -> Tuple[int, bytes]:
    """Returns how many variables there are, and as many of them as fit, by name, encoded for the wire.

    Args:
        namespace: The namespace.
        hidden: Names that belong to the shell.
        marks: Whether to add a mark to each variable, which differs after its object has changed. Marks of two
            processes can be compared if one was forked from the other, or both from a third. A variable that there was
            no time to examine has no mark.
    """
    variables = _shown(namespace, hidden)
    deadline = _thread_seconds() + (_MARK_SECONDS if marks else _LOOK_SECONDS)
    found = []

    for name in sorted(variables)[:MAX_VARIABLES]:
        # Out of time: only the classes are named.
        is_short = _thread_seconds() >= deadline
        found.append(_described(name, variables[name], is_short=is_short))

        if marks and not is_short:
            found[-1]["mark"] = digest(variables[name])

    return len(variables), _encoded(found)


def look(
    namespace: Mapping[str, Any], hidden: Mapping[str, Any], name: str, *, marks: bool
) -> Tuple[int, bytes]:
    """Returns the variable called `name` in detail, or a list of all variables if no name is given."""
    return show_variable(namespace, hidden, name) if name else list_variables(namespace, hidden, marks=marks)


def show_variable(namespace: Mapping[str, Any], hidden: Mapping[str, Any], name: str) -> Tuple[int, bytes]:
    """Returns one variable in detail, encoded for the wire; none if there is no such variable."""
    variables = _shown(namespace, hidden)

    if name not in variables:
        return len(variables), b"[]"

    value = variables[name]
    described = _described(name, value, is_short=False)

    if type(value) is str:
        described["text"] = value[:MAX_SHOWN_CHARS]

    table = table_of(value)

    if table is not None:
        shape, columns, rows = table
        described["shape"] = list(shape)
        described["columns"] = [[_cut(label), _cut(kind)] for label, kind in columns]
        described["rows"] = [[_cut(cell) for cell in row] for row in rows]
    else:
        items = [
            [_cut(key), _cut(type_name(item)), _cut(summary(item))]
            for key, item in islice(elements_of(value), MAX_SHOWN_ITEMS)
        ]

        if items:
            described["items"] = items

    return len(variables), _encoded([described])


def _shown(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        name: value
        for name, value in list(namespace.items())
        if type(name) is str and not name.startswith("_") and name not in hidden
    }


def _described(name: str, value: Any, *, is_short: bool) -> Described:
    return {
        "name": _cut(name),
        "type": _cut(type_name(value)),
        "summary": "" if is_short else _cut(summary(value)),
        "size_bytes": None if is_short else size_of(value),
    }


def _cut(text: str) -> str:
    return text[:MAX_VARIABLE_CHARS]


def _encoded(found: List[Described]) -> bytes:
    while True:
        payload = json.dumps(found).encode("ascii")

        if len(payload) <= MAX_CHUNK_BYTES:
            return payload

        if len(found) == 1:
            # In characters of four bytes and more a table can be too large.
            found = [{name: found[0][name] for name in ("name", "type", "summary", "size_bytes")}]
        else:
            del found[len(found) // 2 :]
