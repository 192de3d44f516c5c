"""Large responses, serialised off the loop: the JSON of an execution may take seconds to write.

A small value is written at once; one whose parts cost more is written in the thread for answers, where it takes turns
with the loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from fumehood.off_loop import json_in_pieces, off_loop
from fumehood.server.streaming import (
    MAX_WAITING_BYTES,
    Line,
    event_data,
    json_bytes,
    readable_json,
    stream_response,
)
from fumehood.values.events import CommEvent, Event, ExecutionFinished, ResultEvent, event_bytes
from fumehood.values.execution import Execution
from fumehood.values.plain_data import as_data
from fumehood.values.results import held_bytes
from fumehood.values.stateless import StatelessReply

# A smaller value is written in about a millisecond.
_SMALL_BYTES = 128 * 1024
_LOG_ENTRY_BYTES = 200
_T = TypeVar("_T")


class WrittenLine(dict[str, Any]):
    """A line of a stream that is JSON already.

    Attributes:
        json: The JSON of it.
    """

    def __init__(self, kind: str, json: bytes) -> None:
        super().__init__(type=kind)
        self.json = json


async def rendered(value: object, render: Callable[[Any], _T]) -> _T:
    """Returns `render(value)`; runs it in the thread for answers if that takes long."""
    if _cost_bytes(value) <= _SMALL_BYTES:
        return render(value)

    return await off_loop("answers", render, value)


async def line_of(value: object, data: Callable[[Any], Line]) -> Line:
    """Returns a value as a line of a stream.

    Args:
        value: An event, or another value that a line holds.
        data: Makes plain data of it.
    """
    if _cost_bytes(value) <= _SMALL_BYTES:
        return data(value)

    return await off_loop("answers", _written_line, value, data)


async def stream_events(request: Request, events: AsyncGenerator[Event, None]) -> Response:
    """Returns a response that streams the events of an execution, which cannot be paused, as lines."""
    return await stream_response(request, _event_lines(events), MAX_WAITING_BYTES)


async def _event_lines(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Line, None]:
    async with aclosing(events):
        async for event in events:
            yield await line_of(event, event_data)


async def large_answer(value: object) -> Response:
    """Returns a value of the port as an answer, whatever its size."""
    if _cost_bytes(value) <= _SMALL_BYTES:
        body = json_bytes(as_data(value))
    else:
        body = await off_loop("answers", _written, value)

    return Response(body, media_type="application/json")


async def off_loop_answer(value: object) -> Response:
    """Returns a value of the port as a response, written in the thread for answers: it is usually large."""
    return Response(await off_loop("answers", _written, value), media_type="application/json")


def _written(value: object) -> bytes:
    return readable_json(json_in_pieces(as_data(value)))


def _written_line(value: object, data: Callable[[Any], Line]) -> WrittenLine:
    line = data(value)
    return WrittenLine(line.get("type", ""), readable_json(json_in_pieces(line)))


def _cost_bytes(value: object) -> int:
    """Estimates the cost of writing a value, in bytes of memory that this takes meanwhile."""
    match value:
        case Execution():
            texts = sum(_LOG_ENTRY_BYTES + 2 * len(entry.text) for entry in value.logs.entries)
            return texts + sum(map(held_bytes, value.results))
        case ExecutionFinished():
            return _cost_bytes(value.execution)
        case StatelessReply():
            return _cost_bytes(value.execution) + sum(map(len, value.files.values()))
        case ResultEvent() | CommEvent():
            return event_bytes(value)
        case Mapping():
            return sum(map(_cost_bytes, value.values()))
        case _:
            return 0
