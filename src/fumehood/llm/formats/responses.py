"""OpenAI's Responses: function and custom tools, call items, and results as items of the hosted code interpreter.

Pure translation. A server that offers the Responses API can put `code_interpreter_call` items and their stream events
into its answers. Pictures are data URLs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

from fumehood.llm.formats.calls import (
    CODE,
    Form,
    Item,
    ModelCall,
    ToolWords,
    data_url,
    read_arguments,
    text_of,
)
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


_PREFIX = "cntr_"
_STOPPED = ("time_limit", "cpu_limit", "interrupted")


def container_id_of(sandbox_id: str) -> str:
    """Return the container id that corresponds to a sandbox id."""
    return f"{_PREFIX}{sandbox_id}"


def code_interpreter_call(
    result: ToolResult, code: str, container_id: str, *, item_id: str | None = None
) -> Item:
    """Return the item for a call.

    Args:
        result: Its result.
        code: The code that was run.
        container_id: The container id to report.
        item_id: Id of the item; a new one unless given.
    """
    outputs: list[Item] = [{"type": "logs", "logs": result.text}]
    outputs += [{"type": "image", "url": data_url(image)} for image in result.images]
    return {
        "type": "code_interpreter_call",
        "id": item_id or f"ci_{uuid.uuid4().hex}",
        "code": code,
        "container_id": container_id,
        "outputs": outputs,
        "status": _status(result),
    }


def code_interpreter_events(item: Item, *, output_index: int, first_number: int = 0) -> Iterator[Item]:
    """Yield the stream events of a finished item, in order.

    Args:
        item: The item from `code_interpreter_call`.
        output_index: Its place in the response's output.
        first_number: The number of the first event in the stream.
    """
    begun = {**item, "code": "", "outputs": None, "status": "in_progress"}
    named: list[tuple[str, Item]] = [
        ("response.output_item.added", {"item": begun}),
        ("response.code_interpreter_call.in_progress", {"item_id": item["id"]}),
        ("response.code_interpreter_call_code.delta", {"item_id": item["id"], "delta": item["code"]}),
        ("response.code_interpreter_call_code.done", {"item_id": item["id"], "code": item["code"]}),
        ("response.code_interpreter_call.interpreting", {"item_id": item["id"]}),
        ("response.code_interpreter_call.completed", {"item_id": item["id"]}),
        ("response.output_item.done", {"item": item}),
    ]

    for number, (kind, fields) in enumerate(named, first_number):
        yield {"type": kind, "output_index": output_index, "sequence_number": number, **fields}


def _status(result: ToolResult) -> str:
    """Return the item's status: an exception is `completed`, stopped code `incomplete`, a lost context `failed`."""
    if result.execution is None:
        return "failed"

    error = result.execution.error

    if error is None or error.kind == "exception":
        return "completed"

    return "incomplete" if error.kind in _STOPPED else "failed"
