"""Models of the routes of forks.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.fields import Body, Labels, Name, Seconds
from fumehood.values.requests import MAX_FORKS, Forked, ForkRequest

ForkedAnswer = model_of(Forked)


class NewForks(Body):
    """What to fork, and how many forks."""

    count: int = Field(1, ge=1, le=MAX_FORKS, description="How many; all of them are made, or none.")
    checkpoint_id: Name | None = Field(
        None, description="From which checkpoint, by its id or its name; null: from now on."
    )
    reseed: bool = Field(True, description="Let randomness diverge: each fork draws numbers of its own.")
    timeout_seconds: Seconds | Literal["inherit"] | None = Field(
        "inherit",
        description="The time of each, within the server's longest; null: the server's default; `inherit`: as much "
        "as the parent was given, counted from the fork.",
    )
    metadata: Labels | None = Field(None, description="Labels of each; null: those of the parent.")

    def request(self) -> ForkRequest:
        """Returns the request of the port."""
        return ForkRequest(
            count=self.count,
            checkpoint_id=self.checkpoint_id,
            reseed=self.reseed,
            timeout_seconds=self.timeout_seconds,
            metadata=self.metadata,
        )


class Adoption(Body):
    """The fork that replaces its parent."""

    child_id: Name = Field(description="A fork of this sandbox.")
