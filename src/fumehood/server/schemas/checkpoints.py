"""Models of the routes of checkpoints and of judging.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.fields import Body, Code, ExecutionSeconds, Name
from fumehood.values.judging import DEFAULT_CASE_SECONDS, CaseRun, JudgeRequest
from fumehood.values.requests import TakeCheckpoint
from fumehood.values.sandbox import CheckpointInfo

CheckpointAnswer = model_of(CheckpointInfo)
CaseRunAnswer = model_of(CaseRun)


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


class NewJudgement(Body):
    """A program, and the input of each run of it."""

    code: Code = Field(description="The program, in Python; it runs as `__main__`.")
    stdins: list[Annotated[str, Field(max_length=4 << 20)]] = Field(
        max_length=200, description="The standard input of each run; ask again for more."
    )
    timeout_seconds: ExecutionSeconds = Field(DEFAULT_CASE_SECONDS, description="Time of each run.")
    memory_bytes: int | None = Field(
        None,
        ge=1 << 20,
        le=1 << 50,
        description="What each run may take beyond the interpreter and the imports.",
    )
    concurrency: int | None = Field(
        None, ge=1, le=64, description="How many run at once; null: as many as processors."
    )

    def request(self) -> JudgeRequest:
        """Returns the request of the port."""
        return JudgeRequest(
            code=self.code,
            stdins=tuple(self.stdins),
            wall_seconds=self.timeout_seconds,
            memory_bytes=self.memory_bytes,
            concurrency=self.concurrency,
        )


class CaseRunList(BaseModel):
    """The result of each run, in the order of the inputs."""

    items: list[CaseRunAnswer]  # type: ignore[valid-type]
