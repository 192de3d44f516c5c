"""Models without tool calls: they write their code into their text, between ```python and ```.

Runs in the user's process, around any provider. Blocks of Python become calls, their output goes back as a message of
the user, and a message without a block is the answer. Blocks in other languages are text and are never run.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.providers.base import (
    MAX_CALLS,
    CellOutput,
    CodeCall,
    Message,
    ModelMessage,
    ModelRequest,
    Provider,
    UserMessage,
    Written,
)

_PYTHON = ("python", "py", "python3", "ipython")
_OPENING = re.compile(r"\s*+(`{3,}+)\s*+([A-Za-z0-9_+.-]{0,40}+)[^`]*+", re.ASCII)
# The first line of a block is short; a longer line is text.
_MAX_FENCE_CHARS = 200
_HOW = """\
You have no tool calls. To run Python, write one block of code that begins with ```python and ends with ```, and \
nothing after it. It is run, and you get its output in the next message. Never write output yourself. When you know \
the answer, write it without any block of code."""


class FencedProvider:
    """A provider for a model that writes its code into its text.

    Args:
        inner: The provider of the model.
        instructions: The instructions about blocks of code.
    """

    def __init__(self, inner: Provider, *, instructions: str = _HOW) -> None:
        self._inner = inner
        self._instructions = instructions
        self.name = "fenced"

    @property
    def model(self) -> str:
        """The model's name."""
        return self._inner.model

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        """Ask the model; described at `Provider`."""
        splitter = FenceSplitter(_calls_before(request) + 1)
        instructions = "\n\n".join(part for part in (request.instructions, self._instructions) if part)
        asked = ModelRequest(instructions=instructions, messages=_as_prose(request.messages, self.name))

        async with aclosing(self._inner.generate(asked)) as pieces:
            async for piece in pieces:
                match piece:
                    case TextWritten(text=text):
                        for part in splitter.feed(text):
                            yield part
                    case ModelMessage():
                        for part in splitter.finish():
                            yield part

                        yield self._split(piece, splitter)

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()

    def _split(self, message: ModelMessage, splitter: FenceSplitter) -> ModelMessage:
        calls = splitter.calls
        end = message.end

        if end == "length" and splitter.is_open:
            calls = calls[:-1]

        # Complete blocks can be run, though the model was cut off behind them.
        if end == "length" and calls:
            end = "end"

        raw = (("raw", message.text),)
        return replace(
            message,
            text=splitter.prose.strip(),
            calls=tuple(calls),
            end=end,
            native=(dict(raw),),
            dialect=self.name,
        )


class FenceSplitter:
    """Separates text from Python in a stream of pieces.

    Args:
        first_number: Number of its first block in the conversation, for the names of calls.
    """

    def __init__(self, first_number: int = 1) -> None:
        self._number = first_number
        # An incomplete line that may still be the first or last of a block.
        self._held = ""
        self._is_line_start = True
        # The backticks of the open block, and whether it is Python.
        self._fence = ""
        self._is_python = False
        self._prose: list[str] = []
        self._blocks: list[list[str]] = []

    @property
    def prose(self) -> str:
        """The text outside of blocks of Python."""
        return "".join(self._prose)

    @property
    def is_open(self) -> bool:
        """True while a block of Python is not complete."""
        return bool(self._fence) and self._is_python

    @property
    def calls(self) -> list[CodeCall]:
        """The blocks so far, as calls."""
        return [
            CodeCall(id=self._call_id(index), code=textwrap.dedent("".join(block)))
            for index, block in enumerate(self._blocks)
        ]

    def feed(self, text: str) -> list[Written]:
        """Take a piece; return the complete parts."""
        pieces: list[Written] = []

        for line in text.splitlines(keepends=True):
            pieces += self._feed_line(line)

        return pieces

    def finish(self) -> list[Written]:
        """Return the rest."""
        held, self._held = self._held, ""

        if held and self._fence and _closes(held, self._fence):
            self._fence = ""
            return []

        return self._emit(held) if held else []

    def _feed_line(self, part: str) -> list[Written]:
        """Take a part of one line, with its end or without."""
        if not self._is_line_start:
            self._is_line_start = part.endswith("\n")
            return self._emit(part)

        self._held += part

        if self._held.endswith("\n"):
            line, self._held = self._held, ""
            return self._take_line(line)

        if _may_be_fence(self._held):
            return []

        line, self._held = self._held, ""
        self._is_line_start = False
        return self._emit(line)

    def _take_line(self, line: str) -> list[Written]:
        """Take a whole line that begins like a fence."""
        if self._fence:
            if not _closes(line, self._fence):
                return self._emit(line)

            was_python, self._fence = self._is_python, ""
            return [] if was_python else self._emit(line)

        opening = _OPENING.fullmatch(line.rstrip("\n"))

        if opening is None or len(self._blocks) >= MAX_CALLS:
            return self._emit(line)

        self._fence = opening[1]
        self._is_python = opening[2].lower() in _PYTHON

        if not self._is_python:
            return self._emit(line)

        self._blocks.append([])
        return []

    def _emit(self, text: str) -> list[Written]:
        if self.is_open:
            self._blocks[-1].append(text)
            return [CodeWritten(call_id=self._call_id(len(self._blocks) - 1), text=text)]

        self._prose.append(text)
        return [TextWritten(text=text)]

    def _call_id(self, index: int) -> str:
        return f"cell_{self._number + index}"


def _may_be_fence(line: str) -> bool:
    return len(line) <= _MAX_FENCE_CHARS and (not line.strip() or line.lstrip().startswith("`"))


def _closes(line: str, fence: str) -> bool:
    marks = line.strip()
    return len(marks) >= len(fence) and not marks.strip("`")


def _calls_before(request: ModelRequest) -> int:
    return sum(len(message.calls) for message in request.messages if isinstance(message, ModelMessage))


def _as_prose(messages: tuple[Message, ...], dialect: str) -> tuple[Message, ...]:
    """Return the conversation of user and model alone, in turns: some chat templates accept nothing else."""
    converted: list[Message] = []

    for message in messages:
        match message:
            case ModelMessage(native=(raw, *_)) if message.dialect == dialect:
                converted.append(ModelMessage(text=str(raw["raw"])))
            case ModelMessage():
                blocks = [f"```python\n{call.code}\n```" for call in message.calls]
                converted.append(ModelMessage(text="\n\n".join([message.text, *blocks]).strip()))
            case CellOutput():
                text = f"Output of {message.call_id}:\n{message.text or '(no output)'}"
                _say(converted, UserMessage(text=text, images=message.images))
            case UserMessage():
                _say(converted, message)

    return tuple(converted)


def _say(converted: list[Message], message: UserMessage) -> None:
    before = converted[-1] if converted else None

    if isinstance(before, UserMessage):
        converted[-1] = UserMessage(
            text=f"{before.text}\n\n{message.text}", images=before.images + message.images
        )
    else:
        converted.append(message)
