"""The `Provider` protocol: a conversation in our own words goes in, text and code come out as they are written.

Plain values and a protocol; used in the host process by the agent and by whoever brings a model of their own. A
provider translates and asks; it keeps no history, runs no code and retries nothing beyond what its SDK does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from fumehood.llm.costs import TokenUsage
from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.result import ToolImage

JsonObject: TypeAlias = Mapping[str, object]

# end: the model has said what it wanted. length: it ran into a bound. refused: it would not, or was not let.
# paused: the server wants to be asked to go on.
MessageEnd = Literal["end", "length", "refused", "paused"]

# Nothing a model writes in one message is longer; a server that sends more is out of order.
MAX_MESSAGE_CHARS = 4 * 1024 * 1024
MAX_CALLS = 64

_UNSEEN = "(Images cannot be shown to you here: print what you need of them, such as numbers.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What the user said, with pictures to look at."""

    text: str
    images: tuple[ToolImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCall:
    """A piece of code that the model wants to be run.

    Attributes:
        id: Name of the call; its output repeats it.
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
        calls: The code that it wants to be run, in order.
        end: Why it ended.
        tokens: What the provider counted for the request; None when it said nothing.
        native: The message in the provider's own form, which it wants back unchanged (thinking, signatures).
        dialect: Which dialect can read `native`.
    """

    text: str = ""
    calls: tuple[CodeCall, ...] = ()
    end: MessageEnd = "end"
    tokens: TokenUsage | None = None
    native: tuple[JsonObject, ...] = ()
    dialect: str = ""

    def without_calls(self, note: str) -> ModelMessage:
        """Return what is left of a message whose calls are not run: its text, and a note of what happened."""
        text = f"{self.text}\n\n{note}" if self.text.strip() else note
        return replace(self, text=text, calls=(), native=(), dialect="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutput:
    """What the model reads of a call that was run, or why it was not."""

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
    """The one tool, as it is described to a model."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model.

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
    """A model, wherever it runs."""

    @property
    def name(self) -> str:
        """The dialect, such as `anthropic`: who can read the `native` form of a message."""

    @property
    def model(self) -> str:
        """The model's name, as price tables have it."""

    def generate(self, request: ModelRequest) -> AsyncGenerator[Written, None]:
        """Ask the model: pieces as they are written, and the complete `ModelMessage` last.

        Closing the generator ends the request. Whatever goes wrong is a `ModelError`.
        """

    async def close(self) -> None:
        """Let go of connections."""
