"""The kind of work that each verb of the port makes a sandbox do, which decides its cost for a key.

The tenant guard lets a verb through only by its entry here: a new verb of the port without an entry is refused, not
served for free.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from fumehood.port.backend import Backend


class Work(Enum):
    """What a verb makes the guest do."""

    # Begins code of the caller or the guest: counts as an execution, and is refused when a quota of the day is used up.
    RUNS = "runs"
    # Counts like `RUNS`, but takes no place among those that run at once: it goes on beside what runs.
    BEGINS = "begins"
    # Makes the guest work for a request that was counted when it began, or for files and connections: its CPU time
    # counts.
    WORKS = "works"
    # Is answered by the host alone.
    LOOKS = "looks"


_RUNS = "execute run run_once stream_once judge save load"
_BEGINS = "ask send_comm start_process"
_WORKS = (
    "create fork adopt resume answer_input answer_tool answer_commit interrupt context_call checkpoint_call record "
    "read write file_call watch settle_watch process_output process_call open_port"
)
_LOOKS = (
    "info list capacity kill set_timeout pause set_network egress_log audit_log security_events metrics "
    "port_address"
)
# They call other verbs, each of which passes the guard by itself.
_MADE_OF_OTHERS = frozenset({"run_many", "aclose"})

WORK_OF: Mapping[str, Work] = MappingProxyType(
    {
        **dict.fromkeys(_RUNS.split(), Work.RUNS),
        **dict.fromkeys(_BEGINS.split(), Work.BEGINS),
        **dict.fromkeys(_WORKS.split(), Work.WORKS),
        **dict.fromkeys(_LOOKS.split(), Work.LOOKS),
    }
)


def verbs_of_port() -> frozenset[str]:
    """Returns the names of all verbs of the port that the guard must classify."""
    named = {name for name in dir(Backend) if not name.startswith("_") and callable(getattr(Backend, name))}
    return frozenset(named - _MADE_OF_OTHERS)
