"""Anthropic's Messages: tools, `tool_use` blocks, and `tool_result` blocks that may hold pictures.

Pure translation. The bash and the text editor tool are Anthropic's own client tools: models know their arguments, so
they are named by type alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fumehood.llm.formats.calls import Item, ModelCall, read_arguments, text_of
from fumehood.llm.formats.pictures import anthropic_image, text_without_images
from fumehood.llm.formats.tool_words import ToolWords
from fumehood.llm.result import ToolResult

BASH = "bash"
TEXT_EDITOR = "str_replace_based_edit_tool"
_BASH_TYPE = "bash_20250124"
_TEXT_EDITOR_TYPE = "text_editor_20250728"


def anthropic_tools(words: ToolWords, *, bash: bool, text_editor: bool) -> list[Item]:
    """Return the tools for `tools`."""
    tools: list[Item] = [
        {"name": words.name, "description": words.description, "input_schema": words.schema()}
    ]

    if bash:
        tools.append({"type": _BASH_TYPE, "name": BASH})

    if text_editor:
        tools.append({"type": _TEXT_EDITOR_TYPE, "name": TEXT_EDITOR})

    return tools


def anthropic_calls(blocks: Iterable[Item]) -> list[ModelCall]:
    """Return the calls among the blocks of an assistant's message."""
    return [_call(block) for block in blocks if block.get("type") == "tool_use"]


def anthropic_answers(answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Item]:
    """Return the one message of the user's role that answers all calls."""
    if not answered:
        return []

    return [{"role": "user", "content": [_answer(call, result) for call, result in answered]}]


def _call(block: Item) -> ModelCall:
    arguments, problem = read_arguments(block.get("input"))
    return ModelCall(
        id=text_of(block, "id"),
        name=text_of(block, "name"),
        form="anthropic",
        arguments=arguments,
        problem=problem,
    )


def _answer(call: ModelCall, result: ToolResult) -> Item:
    # In an error the API accepts only text.
    content: str | list[Item] = text_without_images(result) if result.is_error else result.text

    if result.images and not result.is_error:
        content = [{"type": "text", "text": result.text}, *map(anthropic_image, result.images)]

    answer: Item = {"type": "tool_result", "tool_use_id": call.id, "content": content}

    if result.is_error:
        answer["is_error"] = True

    return answer
