"""The events of an agent's turn; the `Answer` in the last of them; and the queue from the turn to its reader.

Plain values of the user's process. The last event of a turn is `TurnFinished`, which holds the whole turn as one
`Answer`. Text in them comes from a model or from a guest: show it through `fumehood.text.visible`. The producer waits
when the reader of the queue is slow; the end mark always finds room, so a cancelled producer never waits for a reader
that has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from fumehood import FileError, Result
from fumehood.api.files import AsyncFilesystem
from fumehood.bounds import MIB
from fumehood.llm.costs import AgentUsage
from fumehood.llm.result import ToolFile, ToolResult
from fumehood.text import shortened

# answered: the model has answered. max_repairs: so many cells have failed in a row. max_steps: it was asked as often as
# was allowed. cancelled: the caller stopped it. refused: the model or the provider refused. length: its message grew
# too long. failed: an error was raised.
StopReason = Literal["answered", "max_repairs", "max_steps", "cancelled", "refused", "length", "failed"]

# The most bytes of all files of an answer together.
_MAX_KEPT_BYTES = 64 * MIB
_REPR_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCell:
    """A piece of the model's code, and its result.

    Attributes:
        call_id: The id of the call.
        code: The code that was run; empty when the call could not be read.
        result: The text for the model, and the whole execution.
    """

    call_id: str
    code: str
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one turn.

    Attributes:
        text: The last text of the model; the whole answer when `stopped` is answered.
        stopped: answered, max_repairs, max_steps, cancelled, refused, length or failed.
        cells: The code that was run, in order.
        files: Files that the code made or changed, in their last version.
        usage: Requests and tokens of this turn, and their cost.
    """

    text: str
    stopped: StopReason
    cells: tuple[ModelCell, ...] = ()
    files: tuple[ToolFile, ...] = ()
    usage: AgentUsage = field(default_factory=AgentUsage)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Return one line: the text's beginning, why the turn ended, and how much came of it."""
        counts = {"cell": len(self.cells), "file": len(self.files)}
        shown = [
            f"text={shortened(self.text, _REPR_CHARACTERS)!r}",
            f"stopped={self.stopped!r}",
            *(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count),
        ]
        return f"Answer({', '.join(shown)})"


async def with_files(answer: Answer, files: AsyncFilesystem) -> Answer:
    """Return an answer whose files hold their content, the small ones first, as far as there is room.

    Args:
        answer: The answer.
        files: The files of the sandbox in which its code ran.
    """
    room = _MAX_KEPT_BYTES
    contents: dict[str, bytes] = {}

    for file in sorted(answer.files, key=lambda file: file.size_bytes):
        try:
            contents[file.path] = await files.read(file.path, format="bytes", max_bytes=room)
        except FileError:
            # It has grown too large, or is gone again.
            continue

        room -= len(contents[file.path])

    return replace(answer, files=tuple(replace(file, data=contents.get(file.path)) for file in answer.files))


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

    cell: ModelCell


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


# How many events may wait to be read.
_AHEAD = 64


class EventLine:
    """The bounded queue from a turn to the reader of its events."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AHEAD)
        self._queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    async def tell(self, event: AgentEvent) -> None:
        """Add an event, once there is room."""
        await self._room.acquire()
        self._queue.put_nowait(event)

    def end(self, _: object = None) -> None:
        """Add the end mark; usable as a done callback of a task, also of one that never began."""
        self._queue.put_nowait(None)

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events until the end mark."""
        while (event := await self._queue.get()) is not None:
            self._room.release()
            yield event
