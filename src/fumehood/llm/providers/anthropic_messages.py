"""Anthropic's Messages, by the official SDK: Anthropic itself, and any server with the same API.

Translation both ways and nothing else. The events are assembled here and not by the SDK's helper, which raises when a
model writes arguments that are no JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from fumehood.llm.costs import TokenUsage
from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.formats.calls import Item, anthropic_image
from fumehood.llm.providers.base import (
    MAX_CALLS,
    MAX_MESSAGE_CHARS,
    CellOutput,
    CodeCall,
    CodeTool,
    GrowingArguments,
    JsonObject,
    MessageEnd,
    ModelMessage,
    ModelRequest,
    UserMessage,
    Written,
)
from fumehood.llm.providers.sdk import SdkProvider, Speaker
from fumehood.llm.result import ToolImage

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import MessageDeltaUsage, RawContentBlockDelta, RawMessageStreamEvent, Usage

# The API requires a bound; this one holds for all current models.
_MAX_TOKENS = 8_192
_ENDS: Mapping[str, MessageEnd] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "pause_turn": "paused",
}


class AnthropicMessages(SdkProvider):
    """A model behind Messages.

    Args:
        model: Its name.
        base_url: Address of the server, without `/v1`; None: what the SDK takes, which is Anthropic.
        api_key: The key; None: ANTHROPIC_API_KEY.
        images: Whether the model can see.
        options: More for each request, such as `max_tokens`, `thinking` or `extra_body`.
        max_retries: How often the SDK repeats a request that found the server busy or unreachable.
        timeout: Seconds without a sign of the server after which a request has failed.

    Raises:
        InvalidArgumentError: The SDK is not installed.
    """

    name = "anthropic"
    sdk = "anthropic"

    def _connect(self, settings: dict[str, Any]) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(**settings)

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        return {
            "max_tokens": _MAX_TOKENS,
            "messages": anthropic_messages(request, dialect=self.name, images=self._images),
            **({"system": request.instructions} if request.instructions else {}),
            **({} if request.tool is None else {"tools": [_tool(request.tool)]}),
        }

    async def _begin(self, client: AsyncAnthropic, asked: dict[str, Any]) -> Any:
        return await client.messages.create(**asked)

    def _answer(self, speaker: Speaker, tool: str) -> _Answer:
        return _Answer(speaker, tool, self.name)


class _Answer:
    """Assembles events."""

    def __init__(self, speaker: Speaker, tool: str, dialect: str) -> None:
        self._speaker = speaker
        self._tool = tool
        self._dialect = dialect
        self._blocks: dict[int, Item] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._growing: dict[int, GrowingArguments] = {}
        self._tokens: TokenUsage | None = None
        self._stop_reason: str | None = None
        self._size = 0

    def add(self, event: RawMessageStreamEvent) -> list[Written]:
        match event.type:
            case "message_start":
                self._tokens = _tokens(event.message.usage, None)
            case "content_block_start":
                block = event.content_block.model_dump(mode="json", exclude_none=True)
                return self._begin(event.index, cast("Item", block))
            case "content_block_delta":
                return self._grow(event.index, event.delta)
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._tokens = _tokens(event.usage, self._tokens)
        return []

    def _begin(self, index: int, block: Item) -> list[Written]:
        if len(self._blocks) >= MAX_CALLS:
            raise self._speaker.unusable(f"it has more than {MAX_CALLS} parts")

        self._blocks[index] = block

        if block.get("type") == "tool_use":
            self._growing[index] = GrowingArguments(str(block.get("id")), str(block.get("name")))

        # A block may begin with some of its text.
        for field in ("text", "thinking", "signature"):
            if first := str(block.get(field) or ""):
                self._append(index, field, first)

        first = str(block.get("text") or "")
        return [TextWritten(text=first)] if first else []

    def _grow(self, index: int, delta: RawContentBlockDelta) -> list[Written]:
        match delta.type:
            case "text_delta":
                self._append(index, "text", delta.text)
                return [TextWritten(text=delta.text)]
            case "thinking_delta":
                self._append(index, "thinking", delta.thinking)
            case "signature_delta":
                self._append(index, "signature", delta.signature)
            case "input_json_delta":
                return self._grow_call(index, delta.partial_json)

        return []

    def _grow_call(self, index: int, piece: str) -> list[Written]:
        self._count(piece)
        growing = self._growing.get(index)

        if growing is None or not piece:
            return []

        code = growing.add(piece)
        return [CodeWritten(call_id=growing.call_id, text=code)] if code else []

    def _append(self, index: int, field: str, text: str) -> None:
        self._count(text)
        self._texts.setdefault((index, field), []).append(text)

    def _count(self, text: str) -> None:
        self._size += len(text)

        if self._size > MAX_MESSAGE_CHARS:
            raise self._speaker.unusable(f"it has more than {MAX_MESSAGE_CHARS} characters")

    def finish(self) -> ModelMessage:
        # It comes after all blocks.
        if self._stop_reason is None:
            raise self._speaker.broke_off()

        calls: list[CodeCall] = []
        native: list[JsonObject] = []

        for index in sorted(self._blocks):
            block = self._blocks[index] | {
                field: "".join(pieces) for (at, field), pieces in self._texts.items() if at == index
            }

            if index in self._growing:
                call = self._growing[index].call(self._tool)
                calls.append(call)
                # The API accepts only an object here, whatever the model has written.
                block["input"] = {"code": call.code} if not call.problem else {}

            # An empty text is refused when it is sent back.
            if block.get("type") != "text" or block.get("text"):
                native.append(block)

        return ModelMessage(
            text="".join(str(block["text"]) for block in native if block.get("type") == "text"),
            calls=tuple(calls),
            end=_ENDS.get(self._stop_reason or "", "end"),
            tokens=self._tokens,
            native=tuple(native),
            dialect=self._dialect,
        )


def anthropic_messages(request: ModelRequest, *, dialect: str, images: bool) -> list[Item]:
    """Return the conversation in this API's format: the answers to one message's calls are one message."""
    messages: list[Item] = []
    tool = "" if request.tool is None else request.tool.name
    answers: list[object] = []

    for message in request.messages:
        if isinstance(message, CellOutput):
            answers.append(_result(message, images))
            continue

        parts: list[object] = [*answers]
        answers = []

        if isinstance(message, UserMessage):
            said = _said(message.text, message.images, images)
            messages.append({"role": "user", "content": [*parts, *said]})
            continue

        if parts:
            messages.append({"role": "user", "content": parts})

        if content := _content(message, tool, dialect):
            messages.append({"role": "assistant", "content": content})

    return [*messages, {"role": "user", "content": answers}] if answers else messages


def _content(message: ModelMessage, tool: str, dialect: str) -> list[object]:
    if message.native and message.dialect == dialect:
        return [dict(block) for block in message.native]

    parts: list[object] = [{"type": "text", "text": message.text}] if message.text.strip() else []

    for call in message.calls:
        parts.append({"type": "tool_use", "id": call.id, "name": tool, "input": {"code": call.code}})

    return parts


def _result(output: CellOutput, images: bool) -> object:
    # An error accepts only text.
    sees = images and not output.is_error
    parts = _said(output.text_for(images=sees), output.images, sees)
    answer: Item = {"type": "tool_result", "tool_use_id": output.call_id, "content": parts}
    return {**answer, "is_error": True} if output.is_error else answer


def _said(text: str, pictures: tuple[ToolImage, ...], images: bool) -> list[object]:
    parts: list[object] = [{"type": "text", "text": text}]

    if images:
        parts += map(anthropic_image, pictures)

    return parts


def _tool(tool: CodeTool) -> Item:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def _tokens(usage: Usage | MessageDeltaUsage, before: TokenUsage | None) -> TokenUsage:
    """Return the tokens counted so far: numbers are cumulative, and those that are not repeated still hold."""
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    before = before or TokenUsage()
    cached = before.cached_tokens if cached is None else cached
    written = before.cache_write_tokens if written is None else written
    # Here the input excludes tokens read from or written to the cache.
    plain = before.input_tokens - before.cached_tokens - before.cache_write_tokens
    plain = plain if usage.input_tokens is None else usage.input_tokens
    return TokenUsage(
        input_tokens=plain + cached + written,
        output_tokens=usage.output_tokens or 0,
        cached_tokens=cached,
        cache_write_tokens=written,
    )
