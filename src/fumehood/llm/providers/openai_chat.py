"""OpenAI's Chat Completions, by the official SDK: OpenAI itself, and any server with the same API.

Translation both ways and nothing else. A tool's answer can hold only text in this API, so pictures follow it as a
message of the user, if the model can see.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fumehood.llm.costs import TokenUsage
from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.formats.calls import Item, data_url
from fumehood.llm.providers.base import (
    MAX_CALLS,
    MAX_MESSAGE_CHARS,
    CellOutput,
    CodeTool,
    GrowingArguments,
    MessageEnd,
    ModelMessage,
    ModelRequest,
    UserMessage,
    Written,
)
from fumehood.llm.providers.sdk import SdkProvider, Speaker
from fumehood.llm.result import ToolImage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

_ENDS: Mapping[str, MessageEnd] = {"length": "length", "content_filter": "refused"}


class OpenAIChat(SdkProvider):
    """A model behind Chat Completions.

    Args:
        model: Its name.
        base_url: Address of the server, with its `/v1`; None: what the SDK takes, which is OpenAI.
        api_key: The key; None: OPENAI_API_KEY.
        images: Whether the model can see.
        options: More for each request, such as `temperature`, `max_completion_tokens` or `extra_body`.
        max_retries: How often the SDK repeats a request that found the server busy or unreachable.
        timeout: Seconds without a sign of the server after which a request has failed.

    Raises:
        InvalidArgumentError: The SDK is not installed.
    """

    name = "openai-chat"
    sdk = "openai"

    def _connect(self, settings: dict[str, Any]) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        return AsyncOpenAI(**settings)

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        return {
            "messages": chat_messages(request, images=self._images),
            "stream_options": {"include_usage": True},
            **({} if request.tool is None else {"tools": [_tool(request.tool)]}),
        }

    async def _begin(self, client: AsyncOpenAI, asked: dict[str, Any]) -> Any:
        return await client.chat.completions.create(**asked)

    def _answer(self, speaker: Speaker, tool: str) -> _Answer:
        return _Answer(speaker, tool)


class _Answer:
    """Assembles chunks."""

    def __init__(self, speaker: Speaker, tool: str) -> None:
        self._speaker = speaker
        self._tool = tool
        self._text: list[str] = []
        self._calls: list[GrowingArguments] = []
        # Incomplete calls, by their number in the message.
        self._growing: dict[int, GrowingArguments] = {}
        self._finish_reason: str | None = None
        self._is_refused = False
        self._tokens: TokenUsage | None = None
        self._size = 0

    def add(self, chunk: ChatCompletionChunk) -> list[Written]:
        if chunk.usage is not None:
            self._tokens = _tokens(chunk.usage)

        if not chunk.choices:
            return []

        choice = chunk.choices[0]
        self._finish_reason = choice.finish_reason or self._finish_reason
        return [] if choice.delta is None else self._add_delta(choice.delta)

    def _add_delta(self, delta: ChoiceDelta) -> list[Written]:
        pieces: list[Written] = []
        text = delta.content or delta.refusal or ""
        self._is_refused |= bool(delta.refusal)

        if text:
            self._count(text)
            self._text.append(text)
            pieces.append(TextWritten(text=text))

        for call in delta.tool_calls or ():
            pieces += self._add_call(call)

        return pieces

    def _add_call(self, call: ChoiceDeltaToolCall) -> list[Written]:
        function = call.function
        name = (function.name if function else None) or ""
        known = self._growing.get(call.index)

        # Some servers give all calls of a message the same number, and each at once.
        if known is None or (name and call.id and call.id != known.call_id):
            known = self._begin_call(call.id, name)
            self._growing[call.index] = known

        piece = (function.arguments if function else None) or ""
        self._count(piece)
        code = known.add(piece) if piece else ""
        return [CodeWritten(call_id=known.call_id, text=code)] if code else []

    def _begin_call(self, call_id: str | None, name: str) -> GrowingArguments:
        if len(self._calls) >= MAX_CALLS:
            raise self._speaker.unusable(f"it has more than {MAX_CALLS} calls")

        # Some servers give no id.
        begun = GrowingArguments(call_id or f"call_{uuid.uuid4().hex}", name or self._tool)
        self._calls.append(begun)
        return begun

    def _count(self, text: str) -> None:
        self._size += len(text)

        if self._size > MAX_MESSAGE_CHARS:
            raise self._speaker.unusable(f"it has more than {MAX_MESSAGE_CHARS} characters")

    def finish(self) -> ModelMessage:
        if self._finish_reason is None:
            raise self._speaker.broke_off()

        calls = tuple(call.call(self._tool) for call in self._calls)
        end = "refused" if self._is_refused else _ENDS.get(self._finish_reason, "end")
        return ModelMessage(text="".join(self._text), calls=calls, end=end, tokens=self._tokens)


def chat_messages(request: ModelRequest, *, images: bool) -> list[Item]:
    """Return the conversation in this API's format."""
    messages: list[Item] = []
    tool = "" if request.tool is None else request.tool.name
    # Pictures of calls wait until the answers to all calls of a message are there: nothing may stand between them.
    shown: list[object] = []

    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})

    for message in request.messages:
        if not isinstance(message, CellOutput) and shown:
            messages.append({"role": "user", "content": shown})
            shown = []

        match message:
            case UserMessage(text=text):
                pictures = _pictures(message.images) if images else []
                content: object = [{"type": "text", "text": text}, *pictures] if pictures else text
                messages.append({"role": "user", "content": content})
            case ModelMessage():
                messages.append(_model_message(message, tool))
            case CellOutput():
                messages.append(_output(message, images))

                if images and message.images:
                    shown.append({"type": "text", "text": f"Images of call {message.call_id}:"})
                    shown += _pictures(message.images)

    return [*messages, {"role": "user", "content": shown}] if shown else messages


def _model_message(message: ModelMessage, tool: str) -> Item:
    calls: list[object] = [
        {
            "id": call.id,
            "type": "function",
            # Invalid JSON is not sent back as it was: some servers refuse the whole conversation for it.
            "function": {"name": tool, "arguments": json.dumps({"code": call.code})},
        }
        for call in message.calls
    ]
    return {"role": "assistant", "content": message.text, **({"tool_calls": calls} if calls else {})}


def _output(output: CellOutput, images: bool) -> Item:
    return {"role": "tool", "tool_call_id": output.call_id, "content": output.text_for(images=images)}


def _pictures(images: tuple[ToolImage, ...]) -> list[object]:
    return [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]


def _tool(tool: CodeTool) -> Item:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


def _tokens(usage: CompletionUsage) -> TokenUsage:
    details = usage.prompt_tokens_details
    return TokenUsage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        cache_write_tokens=(details.cache_write_tokens or 0) if details else 0,
    )
