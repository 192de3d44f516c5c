"""Results in the format of OpenAI's hosted code interpreter: `code_interpreter_call` items and their stream events.

Pure translation. A server that offers the Responses API can put these items into its answers. Pictures are data URLs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from fumehood.llm.formats.calls import Item
from fumehood.llm.formats.pictures import data_url
from fumehood.llm.result import ToolResult

_PREFIX = "cntr_"
_STOPPED = ("time_limit", "cpu_limit", "interrupted")


def container_id_of(sandbox_id: str) -> str:
    """Return the id of a container for that of a sandbox."""
    return f"{_PREFIX}{sandbox_id}"


def code_interpreter_call(
    result: ToolResult, code: str, container_id: str, *, item_id: str | None = None
) -> Item:
    """Return the item for a call.

    Args:
        result: Its result.
        code: The code that was run.
        container_id: The container.
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
    told: list[tuple[str, Item]] = [
        ("response.output_item.added", {"item": begun}),
        ("response.code_interpreter_call.in_progress", {"item_id": item["id"]}),
        ("response.code_interpreter_call_code.delta", {"item_id": item["id"], "delta": item["code"]}),
        ("response.code_interpreter_call_code.done", {"item_id": item["id"], "code": item["code"]}),
        ("response.code_interpreter_call.interpreting", {"item_id": item["id"]}),
        ("response.code_interpreter_call.completed", {"item_id": item["id"]}),
        ("response.output_item.done", {"item": item}),
    ]

    for number, (kind, fields) in enumerate(told, first_number):
        yield {"type": kind, "output_index": output_index, "sequence_number": number, **fields}


def _status(result: ToolResult) -> str:
    """Return the item's status: an exception is `completed`, stopped code `incomplete`, a lost context `failed`."""
    if result.execution is None:
        return "failed"

    error = result.execution.error

    if error is None or error.kind == "exception":
        return "completed"

    return "incomplete" if error.kind in _STOPPED else "failed"
