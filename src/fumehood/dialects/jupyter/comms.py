"""The open comms of a kernel, as messages report them; code may open any number of them.

Pure, in the server process.
"""

from __future__ import annotations

from typing import Any

_MAX_COMMS = 10_000


class OpenComms:
    """The open comms of one kernel and the target of each; those over a bound are not remembered."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}

    def note(self, kind: str, comm_id: str, target_name: str) -> None:
        """Notes a message of a comm, in either direction."""
        if kind == "comm_close":
            self._targets.pop(comm_id, None)
        elif kind == "comm_open" and len(self._targets) < _MAX_COMMS:
            self._targets[comm_id] = target_name

    def clear(self) -> None:
        """Forgets all, when the context is gone."""
        self._targets.clear()

    def answer(self, target_name: object) -> dict[str, Any]:
        """Returns the answer to a `comm_info_request`: all comms, or those of one target."""
        return {
            comm_id: {"target_name": name}
            for comm_id, name in self._targets.items()
            if not target_name or name == target_name
        }
