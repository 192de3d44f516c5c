"""Models of the routes of executions and contexts, and of the lines of their streams.

They bound and describe; a body becomes a request of the port.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from fumehood.server.schemas.base import (
    BASE64_PATTERN,
    Base64,
    Body,
    Code,
    Envs,
    ExecutionSeconds,
    GuestPath,
    Name,
    model_of,
    request_of,
    with_flags_of,
)
from fumehood.server.schemas.kernel_language import KernelLanguage
from fumehood.server.schemas.problem import Problem
from fumehood.values.events import (
    ClearOutputEvent,
    CommEvent,
    CommitRequestEvent,
    ErrorEvent,
    ExecutionFinished,
    ExecutionStarted,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
    ToolCallEvent,
)
from fumehood.values.execution import Execution, Logs, Record, RecordedCell
from fumehood.values.languages import Language
from fumehood.values.questions import (
    MAX_QUESTIONED_BYTES,
    CheckComplete,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
)
from fumehood.values.requests import (
    DEFAULT_TOOL_CALLS,
    DEFAULT_TOOL_SECONDS,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_ERROR_CHARACTERS,
    MAX_STDIN_BYTES,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
    CreateContext,
    ExecuteRequest,
    ToolSpec,
)
from fumehood.values.sandbox import ContextInfo

_ANSWER_CHARACTERS = 1 << 20


class NewTool(Body):
    """A function of the client's that the code may call."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="What it is called inside.")
    description: str = Field(
        "", max_length=MAX_DESCRIPTION_CHARACTERS, description="What `help()` says of it."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Its arguments: a JSON Schema whose type is object."
    )
    awaited: bool = Field(False, description="Whether the code awaits it; otherwise a call blocks.")
    timeout_seconds: ExecutionSeconds = Field(DEFAULT_TOOL_SECONDS, description="How long one call may take.")
    max_calls: int = Field(
        DEFAULT_TOOL_CALLS, ge=1, le=MAX_TOOL_CALLS, description="How often this execution may call it."
    )

    def spec(self) -> ToolSpec:
        """Returns the tool of the port."""
        return request_of(ToolSpec, self)


@with_flags_of(ExecuteRequest)
class NewExecution(Body):
    """Code to run."""

    code: Code = Field(description="The code.")
    language: Language | KernelLanguage = Field("python", description="What it is written in.")
    context_id: Name | None = Field(None, description="Where it runs; null: the default context.")
    envs: Envs = Field(default_factory=dict, description="Environment variables for this execution only.")
    timeout_seconds: ExecutionSeconds | None = Field(
        None, description="Its time; null: `limits.wall_seconds` of the sandbox."
    )
    stdin: str | None = Field(
        None,
        max_length=MAX_STDIN_BYTES,
        description="What `input()` and the standard input get, up to its end. Not with `allow_input`.",
    )
    tools: list[NewTool] = Field(
        default_factory=list,
        max_length=MAX_TOOLS,
        description="What the code may call while it runs. The calls come in the stream, so a streamed answer has to "
        "be asked for. All together it may make 100 calls, or as many as the most generous tool allows.",
    )

    detached: bool = Field(
        False,
        description="Answer at once with 202; the code goes on without this request, and is followed at "
        "`.../executions/{id}/events`.",
    )

    def request(self) -> ExecuteRequest:
        """Returns the request of the port."""
        return request_of(
            ExecuteRequest,
            self,
            wall_seconds=self.timeout_seconds,
            by="",
            via="",
            tools=tuple(tool.spec() for tool in self.tools),
        )


class DetachedAnswer(BaseModel):
    """An execution that continues without its request."""

    id: str = Field(description="Its name in `.../executions/{id}` and the routes below that.")
    execution_id: str | None = Field(description="The id of the execution; null while it waits for its turn.")
    context_id: str = Field(description="Where it runs.")
    state: Literal["waiting", "running", "ended"]


class NewDecision(Body):
    """The answer to a `commit_request` of a stream."""

    commit: bool = Field(description="Whether what was changed shall stay.")


class NewInput(Body):
    """The answer to an `input_request` of a stream."""

    request_id: Name = Field(description="The question's name, from the line of the stream.")
    text: str | None = Field(
        max_length=_ANSWER_CHARACTERS,
        description="The line, without its end; null: there is no input, and the code gets EOFError.",
    )


class NewToolAnswer(Body):
    """The answer to a `tool_call` of a stream."""

    request_id: Name = Field(description="The call's name, from the line of the stream.")
    value: Any = Field(None, description="What the tool gave: any JSON value of at most 4 MiB.")
    error: str | None = Field(
        None,
        max_length=MAX_ERROR_CHARACTERS,
        description="What the code gets as a ToolError instead of a value.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_kind_of_number(cls, given: object) -> object:
        """Does nothing: a number keeps the type that the tool expects."""
        return given


class ResultAnswer(BaseModel):
    """A result of an execution in each of its formats.

    The content comes from the guest, so never render it unescaped.
    """

    text: str | None = Field(None, description="Plain text, as `repr` gave it.")
    html: str | None = None
    markdown: str | None = None
    svg: str | None = Field(None, description="It may hold scripts.")
    png: Base64 | None = None
    jpeg: Base64 | None = None
    pdf: Base64 | None = None
    latex: str | None = None
    json_: Any = Field(None, alias="json", description="A value of any form.")
    javascript: str | None = None
    data: dict[str, list[Any]] | None = Field(None, description="A data frame as lists by column.")
    chart: dict[str, Any] | None = Field(None, description="A figure as data; `type` says of which kind.")
    extra: dict[str, Base64] = Field(description="Other formats by MIME type.")
    metadata: dict[str, Any] = Field(description="What came with them, such as the size of a picture.")
    is_main_result: bool = Field(description="True for the value of the last expression.")
    display_id: str | None = Field(description="The name under which the code may update it.")
    truncated: dict[str, int] = Field(
        description="Original size in bytes of each format that was cut or left out."
    )


LogsAnswer = model_of(Logs, other={"stdout": list[str], "stderr": list[str]})
ResultLine = model_of(ResultEvent, kind="result", other={"result": ResultAnswer})
ExecutionAnswer = model_of(
    Execution, other={"results": list[ResultAnswer], "logs": LogsAnswer, "text": str | None}
)
_JSON = dict[str, Any]


class ProblemLine(BaseModel):
    """The last line of a stream that ended early."""

    type: Literal["problem"]
    problem: Problem = Field(description="What went wrong.")


class KeepaliveLine(BaseModel):
    """A line that is sent when nothing has happened for a while."""

    type: Literal["keepalive"]


EXECUTION_LINES: tuple[type[BaseModel], ...] = (
    model_of(ExecutionStarted, kind="started"),
    model_of(StdoutEvent, kind="stdout"),
    model_of(StderrEvent, kind="stderr"),
    ResultLine,
    model_of(ClearOutputEvent, kind="clear_output"),
    model_of(ErrorEvent, kind="error"),
    model_of(InputRequestEvent, kind="input_request"),
    model_of(ToolCallEvent, kind="tool_call", other={"arguments": _JSON}),
    model_of(CommEvent, kind="comm", other={"data": _JSON, "metadata": _JSON}),
    model_of(CommitRequestEvent, kind="commit_request"),
    model_of(ExecutionFinished, kind="finished", other={"execution": ExecutionAnswer}),
    ProblemLine,
    KeepaliveLine,
)


_BUFFER_CHARACTERS = 16 << 20
_Code = Annotated[str, Field(max_length=MAX_QUESTIONED_BYTES, description="The code.")]
_Cursor = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_QUESTIONED_BYTES,
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
    """A context to create."""

    language: Language | KernelLanguage = Field("python", description="What runs in it.")
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
