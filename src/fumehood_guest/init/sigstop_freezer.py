"""Freezer by signals: stops every process of a sandbox, and continues it, where the host cannot freeze it.

Runs in init, which keeps answering requests meanwhile. Processes that a guest had stopped itself stay stopped
afterwards.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, FrozenSet, Optional, Tuple

from fumehood_guest.shared import process_usage

# Stopped, stopped by a tracer, ended; or in uninterruptible sleep, after which a process stops before it runs user code
# again.
_STILL = frozenset("TtZXD")
_STOPPED = "T"
# A process that had stopped may have been continued by one that stopped later; a second check detects that.
_LOOKS = 2


class SigstopFreezer:
    """Whether the sandbox is stopped, and which processes were stopped before."""

    def __init__(self) -> None:
        self._stopped_before: Optional[FrozenSet[int]] = None

    @property
    def is_on(self) -> bool:
        """True from the first request to stop until the request to continue."""
        return self._stopped_before is not None

    def stop_all(self) -> Tuple[Dict[str, Any], bytes]:
        """Stops all processes; returns whether all have stopped, or the request must be repeated."""
        if self._stopped_before is None:
            self._stopped_before = frozenset(pid for pid, state in _states().items() if state == _STOPPED)

        process_usage.signal_all(signal.SIGSTOP)
        return {"stopped": all(_all_still() for _ in range(_LOOKS))}, b""

    def continue_all(self) -> Tuple[None, bytes]:
        """Continues all processes that this has stopped."""
        before, self._stopped_before = self._stopped_before or frozenset(), None

        for pid in _states():
            if pid not in before:
                process_usage.signal_one(pid, signal.SIGCONT)

        return None, b""


def _all_still() -> bool:
    return _STILL.issuperset(_states().values())


def _states() -> Dict[int, str]:
    found = {}

    for pid in process_usage.processes():
        fields = process_usage.stat_fields(pid)

        if fields:
            found[pid] = fields[0]

    return found
