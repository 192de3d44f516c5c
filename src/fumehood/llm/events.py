"""The events of an agent's turn, in order: the items of `stream`.

Plain values of the user's process. The last event of a turn is `TurnFinished`, which holds the whole turn as one
`Answer`. Text in them comes from a model or from a guest: show it through `fumehood.text.visible`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from fumehood import Result
from fumehood.llm.answer import Answer, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUploaded:
    """A file of the caller was uploaded to the sandbox."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWritten:
    """A piece of the model's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeWritten:
    """A piece of code, while the model writes it.

    Attributes:
        call_id: The call that it belongs to.
        text: The new part of it.
    """

    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarted:
    """A complete piece of code begins to run."""

    call_id: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWritten:
    """A piece of the code's output."""

    call_id: str
    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultShown:
    """The code has displayed or returned a result."""

    call_id: str
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFinished:
    """The code has ended, or was refused; a repair follows a failure."""

    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The end of the turn, with its whole result."""

    answer: Answer


AgentEvent: TypeAlias = (
    FileUploaded
    | TextWritten
    | CodeWritten
    | CellStarted
    | OutputWritten
    | ResultShown
    | CellFinished
    | TurnFinished
)
