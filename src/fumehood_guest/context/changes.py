"""Changes: which variables a cell has added, changed and deleted, found without running user code.

Runs in a context, around a cell whose caller has asked for it. `fingerprints` defines how an object is examined; all
examinations together are bounded in time. So the result is approximate: large objects are sampled, and after the time
limit an object is identified by its id alone.
"""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Mapping

from fumehood_guest.export.fingerprints import Mark, differ, mark, size_of, summary, type_name
from fumehood_wire.messages import MAX_CHUNK_BYTES, MAX_VARIABLE_CHARS, MAX_VARIABLES

_LOOK_SECONDS = 0.05

Change = Dict[str, Any]


class Survey:
    """The variables of a namespace at one moment.

    Args:
        namespace: The namespace.
        hidden: Names that belong to the shell.
    """

    def __init__(self, namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._hidden = hidden
        variables = self._variables()
        self._marks = _take(variables)
        self._types = {name: type_name(value) for name, value in variables.items()}

    def changes(self) -> List[Change]:
        """Returns the differences since the survey was made, sorted by name."""
        variables = self._variables()
        now = _take(variables)
        changes = [
            _describe(name, "deleted", self._types[name], None) for name in self._marks if name not in now
        ]

        for name, value in variables.items():
            before = self._marks.get(name)

            if before is None or differ(before, now[name]):
                kind = "added" if before is None else "changed"
                changes.append(_describe(name, kind, type_name(value), value))

        changes.sort(key=lambda change: change["name"])
        return changes

    def encoded(self) -> bytes:
        """Returns `changes` encoded for the wire: as many as fit into one message."""
        changes = self.changes()[:MAX_VARIABLES]

        while True:
            payload = json.dumps(changes).encode("ascii")

            if len(payload) <= MAX_CHUNK_BYTES:
                return payload

            del changes[len(changes) // 2 :]

    def _variables(self) -> Dict[str, Any]:
        return {
            name: value
            for name, value in list(self._namespace.items())
            if type(name) is str and not name.startswith("_") and name not in self._hidden
        }


def _take(variables: Mapping[str, Any]) -> Dict[str, Mark]:
    deadline = time.monotonic() + _LOOK_SECONDS
    # Out of time: only the identity of the object is recorded.
    return {
        name: mark(value) if time.monotonic() < deadline else (id(value),)
        for name, value in variables.items()
    }


def _describe(name: str, kind: str, class_name: str, value: Any) -> Change:
    return {
        "name": name[:MAX_VARIABLE_CHARS],
        "kind": kind,
        "type": class_name[:MAX_VARIABLE_CHARS],
        "summary": "" if kind == "deleted" else summary(value)[:MAX_VARIABLE_CHARS],
        "size_bytes": None if kind == "deleted" else size_of(value),
    }
