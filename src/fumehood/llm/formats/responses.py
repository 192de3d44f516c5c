"""OpenAI's Responses: function and custom tools, call items, and outputs that may hold pictures.

Pure translation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fumehood.llm.formats.calls import CODE, Form, Item, ModelCall, read_arguments, text_of
from fumehood.llm.formats.pictures import data_url
from fumehood.llm.formats.tool_words import ToolWords
from fumehood.llm.result import ToolResult

_FORMS: dict[str, Form] = {"function_call": "response", "custom_tool_call": "custom"}


def response_tools(words: ToolWords, *, custom: bool) -> list[Item]:
    """Return the tool for `tools`; a custom one takes the code as plain text, without JSON."""
    if custom:
        return [
            {
                "type": "custom",
                "name": words.name,
                "description": words.description,
                "format": {"type": "text"},
            }
        ]

    return [
        {
            "type": "function",
            "name": words.name,
            "description": words.description,
            "parameters": words.schema(),
            "strict": True,
        }
    ]


def response_calls(items: Iterable[Item]) -> list[ModelCall]:
    """Return the calls among the items of a response's output."""
    return [_call(item, form) for item in items if (form := _FORMS.get(text_of(item, "type"))) is not None]


def response_answers(answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Item]:
    """Return an output item for each call, in order."""
    return [_answer(call, result) for call, result in answered]


def _call(item: Item, form: Form) -> ModelCall:
    problem = ""

    if form == "custom":
        arguments = {CODE: item.get("input")}
    else:
        read, problem = read_arguments(item.get("arguments"))
        arguments = dict(read)

    return ModelCall(
        id=text_of(item, "call_id"),
        name=text_of(item, "name"),
        form=form,
        arguments=arguments,
        problem=problem,
        caller=item.get("caller"),
    )


def _answer(call: ModelCall, result: ToolResult) -> Item:
    kind = "custom_tool_call_output" if call.form == "custom" else "function_call_output"
    answer: Item = {"type": kind, "call_id": call.id, "output": _output(result)}

    if call.caller is not None:
        answer["caller"] = call.caller

    return answer


def _output(result: ToolResult) -> str | list[Item]:
    if not result.images:
        return result.text

    parts: list[Item] = [{"type": "input_text", "text": result.text}]
    parts += [
        {"type": "input_image", "image_url": data_url(image), "detail": "auto"} for image in result.images
    ]
    return parts
