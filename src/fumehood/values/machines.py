"""The machines behind a server, as its owner sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fumehood.values.sandbox import Capacity

MachineState = Literal["ready", "draining", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """One machine whose host keeps sandboxes.

    Attributes:
        host_id: The name of its host, with which the ids of its sandboxes begin.
        state: ready; draining: it makes no new sandboxes, other than forks; absent: it does not answer.
        reason: Why it does not answer; empty if it does.
        labels: Its labels, such as `zone`.
        templates: The names of the templates on this machine.
        capacity: Its last capacity report; None while it does not answer.
    """

    host_id: str
    state: MachineState
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    capacity: Capacity | None = None


def machine_of(
    capacity: Capacity, labels: Mapping[str, str] | None = None, templates: tuple[str, ...] = ()
) -> MachineInfo:
    """Returns the description of a machine that has answered with its capacity."""
    return MachineInfo(
        host_id=capacity.host_id,
        state="draining" if capacity.is_draining else "ready",
        labels=labels or {},
        templates=templates,
        capacity=capacity,
    )
