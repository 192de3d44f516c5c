"""OpenAI's Chat Completions: tools, `tool_calls` and messages of the role `tool`; and the deprecated functions.

Pure translation. A tool message takes text alone, so pictures can only follow in a message of the user's role, where
the caller wants that. Some servers with OpenAI's API support only `functions`, `function_call` and the role `function`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fumehood.llm.formats.calls import (
    CODE,
    Item,
    ModelCall,
    ToolWords,
    as_items,
    data_url,
    plain_dict,
    read_arguments,
    text_of,
    text_without_images,
)
from fumehood.llm.result import ToolImage, ToolResult


def chat_tools(words: ToolWords, *, custom: bool) -> list[Item]:
    """Return the tool for `tools`; a custom one takes the code as plain text, without JSON."""
    if custom:
        made: Item = {"name": words.name, "description": words.description, "format": {"type": "text"}}
        return [{"type": "custom", "custom": made}]

    function: Item = {
        "name": words.name,
        "description": words.description,
        "parameters": words.schema(),
        "strict": True,
    }
    return [{"type": "function", "function": function}]


def chat_calls(message: Mapping[str, object]) -> list[ModelCall]:
    """Return the calls in an assistant's message."""
    return [_call(item) for item in as_items(message.get("tool_calls"))]


def chat_answers(answered: Sequence[tuple[ModelCall, ToolResult]], *, with_images: bool) -> list[Item]:
    """Return a tool message for each call, in order, and one of the user's role with the pictures where wanted."""
    messages: list[Item] = []
    pictures: list[Item] = []

    for call, result in answered:
        text = result.text if with_images else text_without_images(result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

        if with_images and result.images:
            pictures += _picture_parts(call, result.images)

    return [*messages, {"role": "user", "content": pictures}] if pictures else messages


def _call(item: Item) -> ModelCall:
    if "custom" in item:
        called = plain_dict(item["custom"])
        arguments: Mapping[str, object] = {CODE: text_of(called, "input")}
        return ModelCall(
            id=text_of(item, "id"), name=text_of(called, "name"), form="chat", arguments=arguments
        )

    called = plain_dict(item.get("function"))
    arguments, problem = read_arguments(called.get("arguments"))
    return ModelCall(
        id=text_of(item, "id"),
        name=text_of(called, "name"),
        form="chat",
        arguments=arguments,
        problem=problem,
    )


def _picture_parts(call: ModelCall, images: Iterable[ToolImage]) -> list[Item]:
    parts: list[Item] = [{"type": "text", "text": f"Images of the tool call {call.id}, in order:"}]
    parts += [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return parts


def functions(words: ToolWords) -> list[Item]:
    """Return the tool for `functions`."""
    return [{"name": words.name, "description": words.description, "parameters": words.schema()}]


def function_calls(message: Mapping[str, object]) -> list[ModelCall]:
    """Return the call in an assistant's message; there is one at most."""
    called = plain_dict(message.get("function_call"))

    if not called:
        return []

    arguments, problem = read_arguments(called.get("arguments"))
    return [
        ModelCall(id="", name=text_of(called, "name"), form="function", arguments=arguments, problem=problem)
    ]


def function_answers(answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Item]:
    """Return the message that answers the call."""
    return [
        {"role": "function", "name": call.name, "content": text_without_images(result)}
        for call, result in answered
    ]
