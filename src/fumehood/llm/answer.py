"""The result of a turn of an agent: the answer, the code that was run for it, and why it stopped.

Plain values of the user's process. Text comes from a model and from a guest: show it through `fumehood.text.visible`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from fumehood import FileError
from fumehood.api.files import AsyncFilesystem
from fumehood.bounds import MIB
from fumehood.llm.costs import AgentUsage
from fumehood.llm.result import ToolFile, ToolResult

# answered: the model has answered. max_repairs: so many cells have failed in a row. max_steps: it was asked as often as
# was allowed. cancelled: the caller stopped it. refused: the model or the provider refused. length: its message grew
# too long. failed: an error was raised.
StopReason = Literal["answered", "max_repairs", "max_steps", "cancelled", "refused", "length", "failed"]

# Of all files of an answer together.
_MAX_KEPT_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
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
    cells: tuple[Cell, ...] = ()
    files: tuple[ToolFile, ...] = ()
    usage: AgentUsage = field(default_factory=AgentUsage)

    def __str__(self) -> str:
        return self.text


async def with_files(answer: Answer, files: AsyncFilesystem) -> Answer:
    """Return an answer whose files hold their content, the small ones first, as far as there is room.

    Args:
        answer: The answer.
        files: Those of the sandbox that its code ran in.
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
