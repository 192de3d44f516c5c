"""Stateless runs: code in, its result out, nothing left; one at a time, or many in one request.

Every run passes the fair queue, so that a flood of one key delays only that key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from typing import Any

from fastapi import Request
from starlette.responses import Response

from fumehood.cancellation import cancel_and_wait
from fumehood.errors import FumehoodError
from fumehood.port.backend import Backend
from fumehood.server.auth import ExecuteCaller, ServicesOf
from fumehood.server.principal import Principal
from fumehood.server.problems import problem_data, request_id_of
from fumehood.server.responses import (
    MAX_WAITING_BYTES,
    NDJSON,
    Line,
    event_data,
    is_stream_wanted,
    large_answer,
    line_of,
    stream_response,
    unless_gone,
)
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.schemas.execute import BatchBody, ExecuteBody, ExecuteReply
from fumehood.server.schemas.problem import problems
from fumehood.server.services import AppServices
from fumehood.values.events import Event
from fumehood.values.plain_data import as_data
from fumehood.values.stateless import StatelessReply

router = guarded_router("execute", "/v1")
_PROBLEMS = problems(400, 401, 403, 413, 422, 429, 502, 503, 504, 507)


@router.post(
    "/execute", summary="Run code in a sandbox of its own", response_model=ExecuteReply, responses=_PROBLEMS
)
async def execute(
    body: ExecuteBody, principal: ExecuteCaller, services: ServicesOf, request: Request
) -> Response:
    """Runs code and returns its result; the sandbox is gone afterwards.

    Code that fails is an answer, not a refusal: `execution.error` says how. With `Accept: application/x-ndjson` or
    `text/event-stream` the events come as they happen; the last line has the type `reply`.
    """
    backend = services.backend_for(principal)
    if is_stream_wanted(request):
        events = _followed(services, principal, backend, body)
        return await stream_response(request, events, MAX_WAITING_BYTES)

    reply = await unless_gone(request, _run(services, principal, backend, body))
    return await large_answer(reply)


@router.post(
    "/execute/batch",
    summary="Run many pieces of code",
    responses=_PROBLEMS
    | {200: {"content": {NDJSON: {}}, "description": "One line for each, as they finish."}},
    response_class=Response,
)
async def execute_batch(
    body: BatchBody, principal: ExecuteCaller, services: ServicesOf, request: Request
) -> Response:
    """Runs each piece of code in a sandbox of its own, and streams what they did as they finish.

    Each line is `{"index": ..., "reply": ...}`, or `{"index": ..., "problem": ...}` for one that was refused.
    """
    for item in body.requests:
        # All items are checked before any is begun.
        item.request()

    return await stream_response(request, _batch(body, principal, services, request_id_of(request)))


async def _run(
    services: AppServices, principal: Principal, backend: Backend, body: ExecuteBody
) -> StatelessReply:
    async with services.queue.place(principal.key_id, _patience(body, services)):
        return await backend.run_once(body.request())


async def _followed(
    services: AppServices, principal: Principal, backend: Backend, body: ExecuteBody
) -> AsyncGenerator[Line, None]:
    async with services.queue.place(principal.key_id, _patience(body, services)):
        async with aclosing(backend.stream_once(body.request())) as items:
            async for item in items:
                yield await line_of(item, _line_data)


def _line_data(item: Event | StatelessReply) -> Line:
    return (
        {"type": "reply", **_object(as_data(item))} if isinstance(item, StatelessReply) else event_data(item)
    )


async def _batch(
    body: BatchBody, principal: Principal, services: AppServices, request_id: str
) -> AsyncGenerator[Line, None]:
    backend = services.backend_for(principal)
    # No more than there are places, so that the queue is not filled by one request.
    places = min(body.concurrency or services.queue.places, services.queue.places)
    left = enumerate(body.requests)
    under_way: set[asyncio.Task[Line]] = set()

    async def run(index: int, item: ExecuteBody) -> Line:
        try:
            async with services.queue.place(principal.key_id, _patience(item, services)):
                reply = await backend.run_once(item.request())

            return await line_of({"index": index, "reply": reply}, lambda line: _object(as_data(line)))
        except FumehoodError as error:
            return {"index": index, "problem": problem_data(error, request_id)}

    try:
        while True:
            # A run whose result was not taken yet holds its place: a client that stalls does not fill the memory.
            for index, item in islice(left, places - len(under_way)):
                under_way.add(asyncio.create_task(run(index, item)))

            if not under_way:
                return

            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            # A line that was taken holds no place.
            under_way.discard(task)
            yield task.result()
    finally:
        await cancel_and_wait(*under_way)


def _patience(body: ExecuteBody, services: AppServices) -> float:
    asked = body.queue_timeout_seconds
    return services.settings.queue_seconds if asked is None else asked


def _object(value: Any) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
