"""OpenAI's Responses, by the official SDK: OpenAI itself, and any server with the same API.

Translation both ways and nothing else. The model's own items are sent back unchanged, its reasoning with them; pictures
are part of a tool's answer here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from fumehood.llm.costs import TokenUsage
from fumehood.llm.events import CodeWritten, TextWritten
from fumehood.llm.formats.calls import Item, data_url
from fumehood.llm.providers.base import (
    MAX_CALLS,
    MAX_MESSAGE_CHARS,
    CellOutput,
    CodeTool,
    GrowingArguments,
    JsonObject,
    MessageEnd,
    ModelMessage,
    ModelRequest,
    UserMessage,
    Written,
    read_call,
)
from fumehood.llm.providers.sdk import SdkProvider, Speaker
from fumehood.llm.result import ToolImage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent, ResponseUsage


class OpenAIResponses(SdkProvider):
    """A model behind Responses.

    Args:
        model: Its name.
        base_url: Address of the server, with its `/v1`; None: what the SDK takes, which is OpenAI.
        api_key: The key; None: OPENAI_API_KEY.
        images: Whether the model can see.
        options: More for each request, such as `reasoning`, `max_output_tokens` or `store`.
        max_retries: How often the SDK repeats a request that found the server busy or unreachable.
        timeout: Seconds without a sign of the server after which a request has failed.

    Raises:
        InvalidArgumentError: The SDK is not installed.
    """

    name = "openai"
    sdk = "openai"

    def _connect(self, settings: dict[str, Any]) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        return AsyncOpenAI(**settings)

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        return {
            "input": response_input(request, dialect=self.name, images=self._images),
            **({"instructions": request.instructions} if request.instructions else {}),
            **({} if request.tool is None else {"tools": [_tool(request.tool)]}),
        }

    async def _begin(self, client: AsyncOpenAI, asked: dict[str, Any]) -> Any:
        return await client.responses.create(**asked)

    def _answer(self, speaker: Speaker, tool: str) -> _Answer:
        return _Answer(speaker, tool, self.name)


class _Answer:
    """Assembles events."""

    def __init__(self, speaker: Speaker, tool: str, dialect: str) -> None:
        self._speaker = speaker
        self._tool = tool
        self._dialect = dialect
        self._growing: dict[int, GrowingArguments] = {}
        self._items: dict[int, ResponseOutputItem] = {}
        self._response: Response | None = None
        self._size = 0

    def add(self, event: ResponseStreamEvent) -> list[Written]:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._count(event.delta)
                return [TextWritten(text=event.delta)]
            case "response.output_item.added":
                if event.item.type == "function_call":
                    self._begin_call(event.output_index, event.item.call_id, event.item.name)
            case "response.function_call_arguments.delta":
                return self._grow(event.output_index, event.delta)
            case "response.output_item.done":
                self._items[event.output_index] = event.item
            case "response.completed" | "response.incomplete":
                self._response = event.response
            case "response.failed":
                raise self._failure(event.response)
            case "error":
                raise self._speaker.said(event.code or "", event.message)

        return []

    def _begin_call(self, index: int, call_id: str, name: str) -> None:
        if len(self._growing) >= MAX_CALLS:
            raise self._speaker.unusable(f"it has more than {MAX_CALLS} calls")

        self._growing[index] = GrowingArguments(call_id, name)

    def _grow(self, index: int, piece: str) -> list[Written]:
        self._count(piece)
        growing = self._growing.get(index)

        if growing is None:
            return []

        code = growing.add(piece)
        return [CodeWritten(call_id=growing.call_id, text=code)] if code else []

    def _count(self, text: str) -> None:
        self._size += len(text)

        if self._size > MAX_MESSAGE_CHARS:
            raise self._speaker.unusable(f"it has more than {MAX_MESSAGE_CHARS} characters")

    def _failure(self, response: Response) -> Exception:
        error = response.error
        return self._speaker.said(
            error.code if error else "", error.message if error else "it gave no reason"
        )

    def finish(self) -> ModelMessage:
        if self._response is None:
            raise self._speaker.broke_off()

        # Some servers that stream the items leave the list at the end empty, and others the other way round.
        items = [self._items[index] for index in sorted(self._items)] or self._response.output
        text, is_refused = _prose(items)
        calls = tuple(
            read_call(item.call_id, item.name, item.arguments, self._tool)
            for item in items
            if item.type == "function_call"
        )

        if len(calls) > MAX_CALLS:
            raise self._speaker.unusable(f"it has more than {MAX_CALLS} calls")

        return ModelMessage(
            text=text,
            calls=calls,
            end="refused" if is_refused else _end(self._response),
            tokens=None if self._response.usage is None else _tokens(self._response.usage),
            native=tuple(_native(item) for item in items),
            dialect=self._dialect,
        )


def _prose(items: list[ResponseOutputItem]) -> tuple[str, bool]:
    text: list[str] = []
    is_refused = False

    for item in items:
        if item.type != "message":
            continue

        for part in item.content:
            is_refused |= part.type == "refusal"
            text.append(part.refusal if part.type == "refusal" else part.text)

    return "".join(text), is_refused


def _end(response: Response) -> MessageEnd:
    if response.status != "incomplete":
        return "end"

    reason = response.incomplete_details.reason if response.incomplete_details else None
    return "refused" if reason == "content_filter" else "length"


def _native(item: ResponseOutputItem) -> JsonObject:
    # `status` belongs to answers; some servers refuse it in a request.
    dumped = item.model_dump(mode="json", exclude_unset=True, exclude={"status"})
    return cast("JsonObject", dumped)


def response_input(request: ModelRequest, *, dialect: str, images: bool) -> list[Item]:
    """Return the conversation in this API's format."""
    items: list[Item] = []
    tool = "" if request.tool is None else request.tool.name

    for message in request.messages:
        match message:
            case UserMessage():
                items.append({"role": "user", "content": _said(message.text, message.images, images)})
            case ModelMessage() if message.native and message.dialect == dialect:
                items += [_as_sent(item) for item in message.native]
            case ModelMessage():
                items += _model_items(message, tool)
            case CellOutput():
                items.append(_output(message, images))

    return items


def _as_sent(item: JsonObject) -> Item:
    """Return an item of the model, with valid JSON in its arguments in place of invalid one."""
    sent = dict(item)

    if sent.get("type") == "function_call" and not _is_json(str(sent.get("arguments"))):
        sent["arguments"] = "{}"

    return sent


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False

    return True


def _model_items(message: ModelMessage, tool: str) -> list[Item]:
    items: list[Item] = []

    if message.text:
        # In full: only OpenAI accepts the short form.
        said: Item = {"type": "output_text", "text": message.text, "annotations": []}
        items.append({"type": "message", "role": "assistant", "content": [said]})

    for call in message.calls:
        arguments = json.dumps({"code": call.code})
        items.append({"type": "function_call", "call_id": call.id, "name": tool, "arguments": arguments})

    return items


def _output(output: CellOutput, images: bool) -> Item:
    shown = _said(output.text_for(images=images), output.images, images)
    return {"type": "function_call_output", "call_id": output.call_id, "output": shown}


def _said(text: str, pictures: tuple[ToolImage, ...], images: bool) -> object:
    if not images or not pictures:
        return text

    parts: list[object] = [{"type": "input_text", "text": text}]

    for image in pictures:
        parts.append({"type": "input_image", "detail": "auto", "image_url": data_url(image)})

    return parts


def _tool(tool: CodeTool) -> Item:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": False,
    }


def _tokens(usage: ResponseUsage) -> TokenUsage:
    details = getattr(usage, "input_tokens_details", None)
    return TokenUsage(
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        cached_tokens=getattr(details, "cached_tokens", 0) or 0,
        cache_write_tokens=getattr(details, "cache_write_tokens", 0) or 0,
    )
