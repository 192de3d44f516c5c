"""The events of an execution, in order: the items of `stream_code`.

Plain values of the host process. The first event is `ExecutionStarted`, the last `ExecutionFinished`, which contains
the whole `Execution`. `at_seconds` counts from the start of the execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fumehood.values.charts import JsonValue
from fumehood.values.execution import Changes, Execution, ExecutionError
from fumehood.values.results import Result, held_bytes

# The size of an event without its content.
_EVENT_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStarted:
    """The code was sent to its context; earlier executions there are done."""

    execution_id: str
    context_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StdoutEvent:
    """A piece of standard output."""

    text: str
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StderrEvent:
    """A piece of standard error."""

    text: str
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEvent:
    """A result was displayed or returned.

    Attributes:
        result: The result.
        is_update: True when the result replaces the result with the same `display_id`.
    """

    result: Result
    at_seconds: float
    is_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearOutputEvent:
    """The code cleared the output displayed so far.

    Attributes:
        wait: True when the output should stay visible until new output comes.
    """

    at_seconds: float
    wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """The execution failed; its end follows."""

    error: ExecutionError
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequestEvent:
    """The code waits for a line of input.

    Attributes:
        execution_id: The execution.
        request_id: Id of this question; the answer repeats it.
        prompt: The text of the question.
        is_password: True when the answer should not be shown.
    """

    execution_id: str
    request_id: str
    prompt: str
    at_seconds: float
    is_password: bool = False


class Question(str):
    """The prompt of `input()` or `getpass()`, as `on_input` receives it.

    Attributes:
        is_password: True when the answer should not be shown.
    """

    is_password: bool

    def __new__(cls, prompt: str, *, is_password: bool = False) -> Question:
        """Return a question with this text."""
        question = super().__new__(cls, prompt)
        question.is_password = is_password
        return question


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEvent:
    """The code calls a tool, and waits for its answer.

    Attributes:
        execution_id: The execution.
        request_id: Id of this call; the answer repeats it.
        name: The tool.
        arguments: Its arguments by name; from the guest.
    """

    execution_id: str
    request_id: str
    name: str
    arguments: Mapping[str, JsonValue]
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommEvent:
    """A message of the code on a comm, the channel of Jupyter's widgets.

    Attributes:
        kind: comm_open, comm_msg or comm_close.
        comm_id: The channel's name.
        data: Its content.
        metadata: Its metadata.
        buffers: Binary parts that `data` leaves out.
        target_name: With comm_open, the target that answers.
    """

    kind: Literal["comm_open", "comm_msg", "comm_close"]
    comm_id: str
    at_seconds: float
    data: Mapping[str, JsonValue] = field(default_factory=dict)
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    target_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequestEvent:
    """A transactional execution has succeeded, and waits for the decision about its changes.

    Attributes:
        execution_id: The execution.
        changes: Its changes.
    """

    execution_id: str
    changes: Changes
    at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFinished:
    """The end of the execution, with its whole record."""

    execution: Execution


Event: TypeAlias = (
    ExecutionStarted
    | StdoutEvent
    | StderrEvent
    | ResultEvent
    | ClearOutputEvent
    | ErrorEvent
    | InputRequestEvent
    | ToolCallEvent
    | CommEvent
    | CommitRequestEvent
    | ExecutionFinished
)


def event_bytes(event: Event) -> int:
    """Return the approximate size of an event in memory while it waits for its reader."""
    match event:
        case StdoutEvent() | StderrEvent():
            return _EVENT_BYTES + len(event.text)
        case ResultEvent():
            return _EVENT_BYTES + held_bytes(event.result)
        case ErrorEvent():
            return _EVENT_BYTES + len(event.error.value) + len(event.error.traceback)
        case InputRequestEvent():
            return _EVENT_BYTES + len(event.prompt)
        case CommitRequestEvent():
            return _EVENT_BYTES * (1 + len(event.changes.variables) + len(event.changes.files))
        case ToolCallEvent():
            return _EVENT_BYTES + len(repr(event.arguments))
        case CommEvent():
            return _EVENT_BYTES + len(repr((event.data, event.metadata))) + sum(map(len, event.buffers))
        case _:
            return _EVENT_BYTES
