"""OpenAI's deprecated functions: `functions`, `function_call`, and messages of the role `function`.

Pure translation. Some servers with OpenAI's API support only these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fumehood.llm.formats.calls import Item, ModelCall, plain_dict, read_arguments, text_of
from fumehood.llm.formats.pictures import text_without_images
from fumehood.llm.formats.tool_words import ToolWords
from fumehood.llm.result import ToolResult


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
