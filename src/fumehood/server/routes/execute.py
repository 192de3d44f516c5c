"""Stateless runs: run code in a sandbox that is killed afterwards, and return the result.

One at a time, or many in one request.

Every run passes the fair queue, so that a flood of one key delays only that key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from fumehood.bounds import SLOW_READER_BYTES
from fumehood.errors import FumehoodError, QueueTimeoutError
from fumehood.port.backend import Backend
from fumehood.server.auth import ExecuteCaller, ServicesOf, until_refused
from fumehood.server.principal import Principal
from fumehood.server.problems import problem_data, request_id_of
from fumehood.server.responses import (
    NDJSON,
    Line,
    event_data,
    in_wanted_form,
    is_stream_wanted,
    large_answer,
    line_of,
    stream_response,
    unless_gone,
)
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.schemas.execute import BatchBody, ExecuteBody, ExecuteReply, item_of
from fumehood.server.schemas.problem import problems
from fumehood.server.services import AppServices
from fumehood.values.events import Event
from fumehood.values.plain_data import as_data
from fumehood.values.stateless import StatelessReply, StatelessRequest

# Each takes some tenths of a millisecond.
_CHECKED_AT_ONCE = 16
_UNTIL_REFUSED = partial(until_refused, scope="execute")
# The time of a batch that names none.
_LONGEST_SECONDS = 86_400.0
BatchId = Annotated[
    str, Path(pattern=r"^batch_[0-9a-f]{24}$", description="The id in the first line of the batch.")
]

router = guarded_router("execute", "/v1")
_PROBLEMS = problems(400, 401, 403, 413, 422, 429, 502, 503, 504, 507)


@router.post(
    "/execute", summary="Run code in a sandbox of its own", response_model=ExecuteReply, responses=_PROBLEMS
)
async def execute(
    body: ExecuteBody, principal: ExecuteCaller, services: ServicesOf, request: Request
) -> Response:
    """Runs code and returns its result; the sandbox is killed afterwards.

    If the code fails, the request still succeeds: `execution.error` describes the failure. With `Accept:
    application/x-ndjson` or `text/event-stream` the events are streamed as they happen; the last line has the type
    `reply`.
    """
    backend = services.backend_for(principal)
    if is_stream_wanted(request):
        events = _followed(request, services, principal, backend, body)
        return await stream_response(request, events, SLOW_READER_BYTES, until_refused=_UNTIL_REFUSED)

    reply = await unless_gone(request, _run(services, principal, backend, body), _UNTIL_REFUSED)
    return await large_answer(request, reply)


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
    """Runs each piece of code in a sandbox of its own, and streams the results as the runs end.

    Each line is `{"cursor": ..., "index": ..., "reply": ...}`, or has a `problem` in place of the reply for a refused
    item. `cursor` counts the lines. All items are checked before the first one is begun.
    """
    runs = _BatchRuns(services, principal, await _checked(body), body.timeout_seconds, request_id_of(request))
    batch = services.batches.begin(
        principal.key_id,
        enumerate(runs.requests),
        runs.run,
        places=_places(body, principal, services),
        is_resumable=body.resumable,
    )
    lines = services.batches.read(batch, 0, is_new=True)
    return await stream_response(request, lines, until_refused=_UNTIL_REFUSED)


@router.get(
    "/execute/batch/{batch_id}",
    summary="Read on in a batch",
    responses=problems(401, 403, 404, 409, 410, 422)
    | {200: {"content": {NDJSON: {}}, "description": "The lines after the cursor."}},
    response_class=Response,
)
async def follow_batch(
    batch_id: BatchId,
    principal: ExecuteCaller,
    services: ServicesOf,
    request: Request,
    cursor: Annotated[int, Query(ge=0, description="The number of the last line that came.")] = 0,
) -> Response:
    """Streams the lines of a resumable batch after a cursor; a reader that was connected before gets no further lines.

    A batch without a reader continues for five minutes. Lines that were sent are kept up to 8 MiB.
    """
    batch = services.batches.get(principal.key_id, batch_id)
    return await stream_response(request, services.batches.read(batch, cursor), until_refused=_UNTIL_REFUSED)


@router.delete(
    "/execute/batch/{batch_id}", status_code=204, summary="End a batch", responses=problems(401, 403, 404)
)
async def end_batch(batch_id: BatchId, principal: ExecuteCaller, services: ServicesOf) -> None:
    """Ends a resumable batch: runs under way are ended, and no further run is begun."""
    services.batches.get(principal.key_id, batch_id)
    await services.batches.end(batch_id)


async def _run(
    services: AppServices, principal: Principal, backend: Backend, body: ExecuteBody
) -> StatelessReply:
    async with services.queue.place(principal.key_id, _patience(body, services)):
        return await backend.run_once(body.request())


async def _followed(
    request: Request, services: AppServices, principal: Principal, backend: Backend, body: ExecuteBody
) -> AsyncGenerator[Line, None]:
    async with services.queue.place(principal.key_id, _patience(body, services)):
        async with aclosing(backend.stream_once(body.request())) as items:
            async for item in items:
                yield await line_of(in_wanted_form(request, item), _line_data)


def _line_data(item: Event | StatelessReply) -> Line:
    return (
        {"type": "reply", **_object(as_data(item))} if isinstance(item, StatelessReply) else event_data(item)
    )


async def _checked(body: BatchBody) -> list[tuple[StatelessRequest, float | None]]:
    """Returns the items of a batch, each with its maximum waiting time; other work of the loop continues meanwhile."""
    checked = []

    for index, fields in enumerate(body.requests):
        item = item_of(index, fields)
        checked.append((item.request(), item.queue_timeout_seconds))

        if index % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)

    return checked


def _places(body: BatchBody, principal: Principal, services: AppServices) -> int:
    """Returns how many items run at once: no more than there are places, so that one batch does not fill the queue."""
    policy = principal.policy
    bounds = (body.concurrency, services.queue.places, policy.max_concurrent_executions, policy.max_sandboxes)
    # A key that may run nothing has its items refused one by one.
    return max(1, min((bound for bound in bounds if bound is not None), default=1))


class _BatchRuns:
    """The items of a batch, run for its caller.

    Args:
        services: The services of the app.
        principal: The caller.
        items: The items, each with its maximum waiting time; None: as long as the batch.
        timeout_seconds: The time limit of the whole batch; None: no limit.
        request_id: The id of the request that began the batch.
    """

    def __init__(
        self,
        services: AppServices,
        principal: Principal,
        items: Sequence[tuple[StatelessRequest, float | None]],
        timeout_seconds: float | None,
        request_id: str,
    ) -> None:
        self.requests = [request for request, _ in items]
        self._patience = [patience for _, patience in items]
        self._queue = services.queue
        self._backend = services.backend_for(principal)
        self._key_id = principal.key_id
        self._begun = time.monotonic()
        self._until = self._begun + (_LONGEST_SECONDS if timeout_seconds is None else timeout_seconds)
        self._request_id = request_id

    async def run(self, index: int, request: StatelessRequest) -> Line:
        """Runs one item of the batch, and returns the line of its result."""
        try:
            async with self._queue.place(self._key_id, self._seconds_left(index)):
                reply = await self._backend.run_once(request)

            return await line_of({"index": index, "reply": reply}, lambda line: _object(as_data(line)))
        except FumehoodError as error:
            return {"index": index, "problem": problem_data(error, self._request_id)}

    def _seconds_left(self, index: int) -> float:
        """Returns how long an item may wait; raises QueueTimeoutError when the time of the batch is over."""
        now = time.monotonic()

        if now >= self._until:
            raise QueueTimeoutError(waited_seconds=now - self._begun)

        patience = self._patience[index]
        return self._until - now if patience is None else min(patience, self._until - now)


def _patience(body: ExecuteBody, services: AppServices) -> float:
    asked = body.queue_timeout_seconds
    return services.settings.queue_seconds if asked is None else asked


def _object(value: Any) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
