"""Reads the calls in a provider's message, and writes their results as messages to append.

Pure translation. The message itself shows its provider's format; dicts and the SDKs' own objects are treated alike. A
message without calls, of any provider, has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fumehood.llm.formats.anthropic import anthropic_answers, anthropic_calls
from fumehood.llm.formats.calls import Form, Item, ModelCall, as_items, plain, plain_dict
from fumehood.llm.formats.chat import chat_answers, chat_calls, function_answers, function_calls
from fumehood.llm.formats.responses import response_answers, response_calls
from fumehood.llm.result import ToolResult

Answered = tuple[ModelCall, ToolResult]


def read_calls(message: object) -> list[ModelCall]:
    """Return the tool calls in a message, a response, an item, or a list of items or blocks.

    Raises:
        InvalidArgumentError: The value is not a message of a provider.
    """
    made = plain(message)

    if isinstance(made, list):
        return _calls_of_items(as_items(made))

    return _calls_of(plain_dict(made))


def write_answers(answered: Sequence[Answered], *, with_images: bool = False) -> list[Item]:
    """Return messages or items to append to the conversation, in the format of the calls.

    Args:
        answered: Each call with its result, in order.
        with_images: Let pictures follow in a message of the user's role where a tool's answer cannot hold them.
    """
    if not answered:
        return []

    writers: dict[Form, Callable[[Sequence[Answered]], list[Item]]] = {
        "chat": partial(chat_answers, with_images=with_images),
        "function": function_answers,
        "response": response_answers,
        "custom": response_answers,
        "anthropic": anthropic_answers,
    }
    return writers[answered[0][0].form](answered)


def _calls_of(message: Item) -> list[ModelCall]:
    if choices := as_items(message.get("choices")):
        return _calls_of(plain_dict(choices[0].get("message")))

    if message.get("object") == "response" or "output" in message:
        return response_calls(as_items(message.get("output")))

    if message.get("tool_calls"):
        return chat_calls(message)

    if "function_call" in message:
        return function_calls(message)

    if isinstance(message.get("content"), (list, tuple)):
        return anthropic_calls(as_items(message["content"]))

    return _calls_of_items([message])


def _calls_of_items(items: list[Item]) -> list[ModelCall]:
    """Return the tool calls in items of the Responses API, or else in content blocks of the Messages API."""
    return response_calls(items) or anthropic_calls(items)
