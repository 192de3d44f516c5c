"""The `Provider` protocol: takes a conversation in our own values, yields text and code as they are written.

Plain values and a protocol; used in the user's process by the agent and by programs with a model of their own. A
provider translates and sends; it keeps no history, runs no code and retries nothing beyond what its SDK does. Arguments
of a tool call are JSON that a model has written: an unreadable one becomes a problem that the model reads, never an
exception. `jiter`, which both SDKs bring, reads incomplete JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from fumehood.llm.costs import TokenUsage
from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.formats.calls import CODE, read_arguments
from fumehood.llm.result import ToolImage
from fumehood.text import visible_line

JsonObject: TypeAlias = Mapping[str, object]

# end: the model has finished. length: it reached a bound. refused: the model or the provider refused. paused: the
# server expects another request to continue.
MessageEnd = Literal["end", "length", "refused", "paused"]

# No message of a model is longer; a server that sends more is faulty.
MAX_MESSAGE_CHARS = 4 * 1024 * 1024
MAX_CALLS = 64

_UNSEEN = "(Images cannot be shown to you here: print what you need of them, such as numbers.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """The user's message, with pictures."""

    text: str
    images: tuple[ToolImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCall:
    """A tool call of the model: code to run.

    Attributes:
        id: Id of the call; its output repeats it.
        code: The code.
        problem: Why it cannot be run, such as arguments that are no JSON; empty when it can.
    """

    id: str
    code: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMessage:
    """One message of the model, complete.

    Attributes:
        text: Its prose.
        calls: The code that it wants to run, in order.
        end: Why it ended.
        tokens: The provider's count for the request; None when there is none.
        native: The message in the provider's own form, which must be sent back unchanged (thinking, signatures).
        dialect: The API of `native`.
    """

    text: str = ""
    calls: tuple[CodeCall, ...] = ()
    end: MessageEnd = "end"
    tokens: TokenUsage | None = None
    native: tuple[JsonObject, ...] = ()
    dialect: str = ""

    def without_calls(self, note: str) -> ModelMessage:
        """Return the rest of a message whose calls are not run: its text, and a note."""
        text = f"{self.text}\n\n{note}" if self.text.strip() else note
        return replace(self, text=text, calls=(), native=(), dialect="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutput:
    """The result of a call for the model, or why it was not run."""

    call_id: str
    text: str
    images: tuple[ToolImage, ...] = ()
    is_error: bool = False

    def text_for(self, *, images: bool) -> str:
        """Return the text for a model that sees the pictures, or does not."""
        text = self.text or "(no output)"
        return text if images or not self.images else f"{text}\n{_UNSEEN}"


Message: TypeAlias = UserMessage | ModelMessage | CellOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTool:
    """The description of the one tool."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        instructions: The system prompt.
        messages: The conversation, oldest first.
        tool: The tool that it may call; None for a model that writes its code into its text.
    """

    instructions: str
    messages: tuple[Message, ...]
    tool: CodeTool | None = None


Written: TypeAlias = TextWritten | CodeWritten | ModelMessage


class Provider(Protocol):
    """A model, local or remote."""

    @property
    def name(self) -> str:
        """The API, such as `anthropic`: the format of `native` messages."""

    @property
    def model(self) -> str:
        """The model's name in price tables."""

    def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        """Ask the model: yields pieces as they are written, and the complete `ModelMessage` last.

        Closing the generator ends the request. Every failure is a `ModelError`.
        """

    async def close(self) -> None:
        """Close connections."""


# Parsing incomplete JSON again for each few characters is quadratic: from here on it is parsed in larger steps.
_OFTEN_CHARS = 8_192
_STEP_CHARS = 1_024


class GrowingArguments:
    """The arguments of one call, as they arrive.

    Args:
        call_id: Id of the call.
        tool: The tool of the call.
    """

    def __init__(self, call_id: str, tool: str) -> None:
        self.call_id = call_id
        self.tool = tool
        self._pieces: list[str] = []
        self._size = 0
        self._read_size = 0
        self._shown = ""

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._pieces)

    def add(self, piece: str) -> str:
        """Take a piece and return the new part of the code, as far as it can be read yet."""
        self._pieces.append(piece)
        self._size += len(piece)

        if self._size > _OFTEN_CHARS and self._size - self._read_size < _STEP_CHARS:
            return ""

        self._read_size = self._size
        return self._news(_code_of_unfinished(self.text))

    def rest(self, code: str) -> str:
        """Return the new part of the complete code."""
        return self._news(code)

    def call(self, known_tool: str) -> CodeCall:
        """Return the complete call, with the fault in it."""
        return read_call(self.call_id, self.tool, self.text, known_tool)

    def _news(self, code: str) -> str:
        if not code.startswith(self._shown):
            return ""

        new = code[len(self._shown) :]
        self._shown = code
        return new


def read_call(call_id: str, tool: str, arguments: str, known_tool: str) -> CodeCall:
    """Return the call that a model has written; `problem` is the fault in it."""
    if tool != known_tool:
        return _broken(call_id, f"there is no tool {visible_line(tool)!r}; the only one is {known_tool!r}")

    given, problem = read_arguments(arguments)

    if problem:
        return _broken(call_id, problem)

    code = given.get(CODE)

    if not isinstance(code, str):
        return _broken(call_id, f"the arguments have no text {CODE!r}")

    return CodeCall(id=call_id, code=_whole_characters(code))


def _broken(call_id: str, problem: str) -> CodeCall:
    return CodeCall(
        id=call_id,
        problem=f'Nothing was run: {problem}. Call the tool again with an object such as {{"code": "print(1)"}}.',
    )


def _code_of_unfinished(arguments: str) -> str:
    from jiter import from_json

    try:
        value = from_json(arguments.encode("utf-8", "replace"), partial_mode="trailing-strings")
    except (ValueError, RecursionError):
        return ""

    code = value.get(CODE) if isinstance(value, dict) else None
    return code if isinstance(code, str) else ""


def _whole_characters(text: str) -> str:
    """Replace half surrogate pairs, which JSON may hold and no encoding can."""
    return text.encode("utf-8", "replace").decode()
