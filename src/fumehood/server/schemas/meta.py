"""Models of the routes of the server itself.

They must not show one caller's data to another.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from fumehood.server.schemas.base import model_of
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
