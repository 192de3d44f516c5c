"""What the routes of checkpoints take and give.

Runs in the server process. It bounds and describes; what a body asks for becomes a request of the port.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from fumehood.backends.checkpoint_requests import TakeCheckpoint
from fumehood.models import CheckpointInfo
from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.fields import Body, Name

CheckpointAnswer = model_of(CheckpointInfo)


class NewCheckpoint(Body):
    """What is to be kept."""

    context_id: Name | None = Field(None, description="The context; null: the default one.")
    name: Name | None = Field(None, description="A name of yours, by which it can be gone back to as well.")
    strict: bool = Field(False, description="Refuse when something could not be kept, in place of naming it.")

    def call(self) -> TakeCheckpoint:
        """Returns the request of the port."""
        return TakeCheckpoint(context_id=self.context_id, name=self.name, strict=self.strict)


class CheckpointList(BaseModel):
    """The checkpoints of a sandbox, the oldest first."""

    items: list[CheckpointAnswer]  # type: ignore[valid-type]
