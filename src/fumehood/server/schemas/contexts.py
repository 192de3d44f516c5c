"""Models of the routes of contexts.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fumehood.server.schemas.describe import model_of
from fumehood.server.schemas.executions import ExecutionAnswer
from fumehood.server.schemas.fields import BASE64_PATTERN, Body, GuestPath, Name
from fumehood.values.execution import Record, RecordedCell
from fumehood.values.questions import (
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
)
from fumehood.values.requests import CreateContext
from fumehood.values.sandbox import ContextInfo, Language

_CODE_CHARACTERS = 1 << 20
_BUFFER_CHARACTERS = 16 << 20
_Code = Annotated[str, Field(max_length=_CODE_CHARACTERS, description="The code.")]
_Cursor = Annotated[
    int | None,
    Field(
        ge=0,
        le=_CODE_CHARACTERS,
        description="Where the cursor is, in Unicode characters; null, or past the end: at the end.",
    ),
]

ContextAnswer = model_of(ContextInfo)
CompletionAnswer = model_of(CodeCompletion)
InspectionAnswer = model_of(CodeInspection)
CompletenessAnswer = model_of(CodeCompleteness)
RecordedCellAnswer = model_of(RecordedCell, other={"execution": ExecutionAnswer})
RecordAnswer = model_of(Record, other={"cells": list[RecordedCellAnswer]})  # type: ignore[valid-type]


class NewContext(Body):
    """What a new context should be."""

    language: Language = Field("python", description="What runs in it.")
    cwd: GuestPath | None = Field(None, description="Where it starts; null: /home/user.")

    def call(self) -> CreateContext:
        """Returns the request of the port."""
        return CreateContext(language=self.language, cwd=self.cwd)


class ContextList(BaseModel):
    """The contexts of a sandbox, the default one first."""

    items: list[ContextAnswer]  # type: ignore[valid-type]


class Interrupted(BaseModel):
    """Whether an interrupt stopped anything."""

    interrupted: bool = Field(description="False when nothing ran.")


class CompletionQuestion(Body):
    """A request for completions at the cursor."""

    code: _Code
    cursor: _Cursor = None

    def question(self, context_id: str) -> CompleteCode:
        """Returns the request of the port."""
        return CompleteCode(code=self.code, cursor=_within(self.code, self.cursor), context_id=context_id)


class InspectionQuestion(Body):
    """A request to describe the name at the cursor."""

    code: _Code
    cursor: _Cursor = None
    detail: int = Field(0, ge=0, le=1, description="0 for the documentation, 1 for the source as well.")

    def question(self, context_id: str) -> InspectCode:
        """Returns the request of the port."""
        cursor = _within(self.code, self.cursor)
        return InspectCode(code=self.code, cursor=cursor, detail=self.detail, context_id=context_id)


class CompletenessQuestion(Body):
    """A request whether code is complete."""

    code: _Code

    def question(self, context_id: str) -> CheckComplete:
        """Returns the request of the port."""
        return CheckComplete(code=self.code, context_id=context_id)


class NewCommMessage(Body):
    """A message of a comm, the channel of Jupyter's widgets."""

    kind: Literal["comm_open", "comm_msg", "comm_close"] = Field(description="What it does to the channel.")
    comm_id: Name = Field(description="The channel's name.")
    data: dict[str, Any] = Field(default_factory=dict, description="What is said.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="What is said about it.")
    buffers: list[Annotated[str, Field(max_length=_BUFFER_CHARACTERS, pattern=BASE64_PATTERN)]] = Field(
        default_factory=list, max_length=100, description="Binary parts that `data` leaves out, as base64."
    )
    target_name: str = Field(
        "", max_length=255, pattern=r"^[^\x00]*$", description="With comm_open, the target that answers."
    )

    def message(self) -> CommMessage:
        """Returns the request of the port."""
        return CommMessage(
            kind=self.kind,
            comm_id=self.comm_id,
            data=self.data,
            metadata=self.metadata,
            buffers=tuple(base64.b64decode(buffer, validate=True) for buffer in self.buffers),
            target_name=self.target_name,
        )


def _within(code: str, cursor: int | None) -> int:
    return len(code) if cursor is None else min(cursor, len(code))
