"""Models of the routes of the server itself.

They must not show one caller's data to another.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from fumehood.server.schemas.base import model_of
from fumehood.setting_fields import DescribedSetting
from fumehood.values.sandbox import Capacity

CapacityAnswer = model_of(Capacity)


class Health(BaseModel):
    """The status of a health check."""

    status: str


class Readiness(Health):
    """The status of a server that may not be ready."""

    reason: str | None = Field(None, description="Why no sandbox is ready, where one could not be made.")


class ServerInfo(BaseModel):
    """The abilities of a server, and how much of its capacity is used."""

    version: str
    isolation: str = Field(description="The level that new sandboxes get.")
    sandboxes: int
    max_sandboxes: int
    cpu_cores: float
    memory_available_bytes: int
    memory_total_bytes: int
    dialects: list[str]

    @classmethod
    def of(cls, capacity: Capacity, dialects: tuple[str, ...]) -> ServerInfo:
        """Makes it from the backend's capacity."""
        return cls(
            version=capacity.version,
            isolation=capacity.isolation_level,
            sandboxes=capacity.sandboxes,
            max_sandboxes=capacity.max_sandboxes,
            cpu_cores=capacity.cpu_cores,
            memory_available_bytes=capacity.memory_available_bytes,
            memory_total_bytes=capacity.memory_total_bytes,
            dialects=list(dialects),
        )


class QueueOfKey(BaseModel):
    """The waiting runs of one key."""

    key_id: str
    waiting: int


class QueueAnswer(BaseModel):
    """The queue of stateless runs."""

    places: int = Field(description="How many run at once.")
    capacity: int = Field(description="How many may wait.")
    running: int
    waiting: int
    mean_seconds: float = Field(description="How long a run takes, in the running mean.")
    oldest_wait_seconds: float | None = Field(description="How long the first has waited; null: none waits.")
    refused: int = Field(description="How many were refused since the start, because the queue was full.")
    timed_out: int = Field(description="How many have waited too long since the start.")
    keys: list[QueueOfKey] = Field(description="Those with waiting runs; for a key, its own.")


class SecurityEventCount(BaseModel):
    """How often a kind of security event has occurred."""

    kind: str
    action: str = Field(description="What was done about it.")
    count: int


class SecurityEventCounts(BaseModel):
    """The security events of all sandboxes of a server since its start, the most frequent first."""

    items: list[SecurityEventCount]
    are_counted: bool = Field(
        description="Whether this server keeps the sandboxes itself: a host daemon or the machines of a cluster "
        "count theirs in metrics of their own."
    )


SettingItem = model_of(DescribedSetting)


class SettingList(BaseModel):
    """The settings of a server, by heading."""

    items: list[SettingItem]  # type: ignore[valid-type]


class MachineRow(BaseModel):
    """The state of one layer of isolation, or of another requirement of sandboxes, on the machine."""

    name: str = Field(description="The layer.")
    state: str = Field(description="there, degraded or missing.")
    need: str = Field(
        description="required: no sandbox starts without it; expected or advice: weaker, or slower."
    )
    why: str = Field(description="What was found.")
    how_to_get_it: str = Field(description="The way to get it; empty if it is there.")
    cause: str = Field(description="The layer whose lack is the cause; empty if there is none.")


class MachineRows(BaseModel):
    """The state of all layers and requirements on the server's machine."""

    items: list[MachineRow]
    is_of_sandboxes: bool = Field(
        description="Whether the sandboxes live on this machine, and not in a host daemon or a cluster."
    )
