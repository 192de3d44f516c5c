"""Standstill: stops every process of a sandbox, and lets it go on, where the host cannot freeze it.

Runs in init, which goes on answering meanwhile. A signal to everybody (`kill(-1)`) reaches a process that is
just being forked as well: the kernel lets a fork fail and repeat when such a signal comes in its middle. What
a guest had stopped by itself stays stopped afterwards.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Dict, FrozenSet, Optional, Tuple

from fumehood_guest.shared import process_usage

# Stopped, stopped by a tracer, ended; and waiting for the system in a way that no signal ends, after which a
# process stops before it is itself again.
_STILL = frozenset("TtZXD")
_STOPPED = "T"
# What was still at one look can have been woken by what was stopped after it; a second look finds that.
_LOOKS = 2


class Standstill:
    """Whether the sandbox stands still, and what stood still before."""

    def __init__(self) -> None:
        self._stopped_before: Optional[FrozenSet[int]] = None

    @property
    def is_on(self) -> bool:
        """True from the first order to stop until the order to go on."""
        return self._stopped_before is not None

    def stop_all(self) -> Tuple[Dict[str, Any], bytes]:
        """Stops everything; tells whether all of it has stopped, or whether it must be asked again."""
        if self._stopped_before is None:
            self._stopped_before = frozenset(pid for pid, state in _states().items() if state == _STOPPED)

        _signal_all(signal.SIGSTOP)
        return {"stopped": all(_all_still() for _ in range(_LOOKS))}, b""

    def continue_all(self) -> Tuple[None, bytes]:
        """Lets everything go on that this has stopped."""
        before, self._stopped_before = self._stopped_before or frozenset(), None

        for pid in _states():
            if pid not in before:
                _signal(pid, signal.SIGCONT)

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


def _signal_all(number: int) -> None:
    if process_usage.has_forks():
        for pid in _states():
            _signal(pid, number)

        return

    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return  # there is nobody but init


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended, or is the jail init's, on its way to a forked sandbox, and soon gone
