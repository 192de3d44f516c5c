"""What a run gave, as messages of Discord: text in pieces that it takes, files and figures beside it.

Everything here comes from a guest or a model. It is shown as text: a code block cannot be closed from inside, and
nobody is mentioned (the client says so of every message).
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import discord

from fumehood import FileError, SandboxNotStartedError
from fumehood.llm import AsyncCodeInterpreter, ToolFile, ToolImage, ToolResult
from fumehood.text import visible

MESSAGE_CHARS = 2_000
FILES_PER_MESSAGE = 10
FILE_BYTES = 10 * 1024 * 1024
# More would be a flood; the rest is a file.
SHOWN_MESSAGES = 4

_FENCE = "```"
# A space of no width: it looks like a fence, and is none.
_DEFUSED = "`\u200b`\u200b`"


@dataclass(frozen=True, slots=True)
class Reply:
    """Messages to send, in order, and the files that go with the last."""

    texts: list[str]
    files: list[discord.File]


async def reply_to_run(result: ToolResult, interpreter: AsyncCodeInterpreter) -> Reply:
    """Show what a run printed, returned, drew and wrote."""
    texts, files = fit(f"{_FENCE}\n{defused(output_of(result))}\n{_FENCE}")
    return Reply(texts, await _attached(files, result.images, result.files, interpreter))


async def reply_to_question(
    text: str, results: list[ToolResult], files: tuple[ToolFile, ...], interpreter: AsyncCodeInterpreter
) -> Reply:
    """Show the answer of a model, with the figures and files of its code."""
    texts, long = fit(visible(text) or "(no answer)")
    images = tuple(image for result in results for image in result.images)
    return Reply(texts, await _attached(long, images, files, interpreter))


def output_of(result: ToolResult) -> str:
    """Return what a person wants to see of a run; the hints of `result.text` are for models."""
    execution = result.execution

    if execution is None:
        return visible(result.text)

    parts = (str(execution.logs), execution.text or "", str(execution.error or ""))
    return visible("\n".join(part.strip("\n") for part in parts if part.strip())) or "(no output)"


def defused(text: str) -> str:
    """Return text that cannot end a code block from inside."""
    return text.replace(_FENCE, _DEFUSED)


def fit(text: str) -> tuple[list[str], list[discord.File]]:
    """Cut a text into messages; one that would be a flood goes on in a file."""
    pieces = split(text)

    if len(pieces) <= SHOWN_MESSAGES:
        return pieces, []

    return pieces[:SHOWN_MESSAGES], [discord.File(io.BytesIO(text.encode()), "whole-answer.txt")]


def split(text: str, size: int = MESSAGE_CHARS) -> list[str]:
    """Cut a text into pieces of at most `size` characters, at ends of lines where there are any.

    A code block that goes on is closed at the end of one piece and opened again in the next, with its language.
    """
    pieces: list[str] = []
    piece = ""
    opened = ""

    for line in _lines(text, size - 2 * len(_FENCE) - 24):
        closing = f"\n{_FENCE}" if opened else ""

        if piece and len(piece) + 1 + len(line) + len(closing) > size:
            pieces.append(piece + closing)
            piece = opened

        piece = f"{piece}\n{line}" if piece else line
        stripped = line.strip()

        if stripped.startswith(_FENCE):
            # A language is a short word; anything else is text that happens to stand there.
            opened = "" if opened else stripped[:20]

    return [*pieces, piece] if piece.strip() else pieces


def _lines(text: str, size: int) -> list[str]:
    return [
        line[start : start + size] for line in text.split("\n") for start in range(0, max(len(line), 1), size)
    ]


async def _attached(
    first: list[discord.File],
    images: tuple[ToolImage, ...],
    files: tuple[ToolFile, ...],
    interpreter: AsyncCodeInterpreter,
) -> list[discord.File]:
    attached = [*first, *(discord.File(io.BytesIO(image.data), image.name) for image in images)]

    for file in files:
        if len(attached) < FILES_PER_MESSAGE and file.size_bytes <= FILE_BYTES:
            attached += await read_file(file.path, interpreter)

    return attached[:FILES_PER_MESSAGE]


async def read_file(path: str, interpreter: AsyncCodeInterpreter) -> list[discord.File]:
    """Return a file of the sandbox as an attachment, or nothing when it has gone or grown too large."""
    try:
        content = await interpreter.sandbox.files.read(path, format="bytes", max_bytes=FILE_BYTES)
    except (FileError, SandboxNotStartedError):
        return []

    return [discord.File(io.BytesIO(content), visible(path.rpartition("/")[2]) or "file")]
