"""The lines of streams of events."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine


class EventOfSandbox(BaseModel):
    """One event; its other fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="What has happened; `here` comes first, `gap` means that some are missing.")
    seq: int = Field(description="Its number, for `after`.")


EVENT_LINES: tuple[type[BaseModel], ...] = (EventOfSandbox, ProblemLine, KeepaliveLine)
