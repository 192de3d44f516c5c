"""Idempotency: a request with an `Idempotency-Key` is done once, however often it is sent; repeats get the same answer.

Runs in the server process, around a handler. The database decides which request was first. A request that failed before
anything was done may be sent again; one with an unknown outcome is never repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response

from fumehood.cancellation import complete
from fumehood.errors import FumehoodError, IdempotencyConflictError, InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.server.auth import principal_of
from fumehood.server.responses import GONE
from fumehood.server.services import Services, services_of
from fumehood.storage.idempotency import (
    Begun,
    Idempotency,
    OtherRequest,
    OutcomeUnknown,
    StillRunning,
    StoredReply,
    digest_of,
)

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="A name of your own for this request: sent again within a day, it is not done again, and "
        "the first answer comes back with `Idempotent-Replayed: true`.",
    ),
]


async def once(request: Request, key: str | None, act: Callable[[], Awaitable[Response]]) -> Response:
    """Carries out the request, or returns the stored answer of the first time.

    Args:
        request: The request; its body has been read.
        key: Its idempotency key; None: the request is carried out without a check.
        act: Carries out the request.

    Raises:
        IdempotencyConflictError: The key was used for another request, or for a request whose outcome is not known.
        InvalidArgumentError: The request has a key, but this is a host daemon, which has no database.
    """
    if key is None:
        return await act()

    services = services_of(request)

    if not isinstance(services, Services):
        raise InvalidArgumentError(
            field="Idempotency-Key",
            value=key,
            allowed="none at a host, which keeps no answers: send it to the server in front of it",
        )

    store = services.idempotency
    principal = await principal_of(request)
    digest = digest_of(
        [request.method.encode(), request.url.path.encode(), request.url.query.encode(), await request.body()]
    )

    match await store.begin(principal.key_id, key, digest):
        case Begun() as begun:
            return await _do(store, begun, act)
        case StoredReply(status, headers, body) if body is not None:
            return Response(body, status, {**headers, "Idempotent-Replayed": "true"})
        case StoredReply():
            raise IdempotencyConflictError(key=key, reason="it was done; the answer was too large to keep")
        case StillRunning():
            raise IdempotencyConflictError(key=key, reason="the first request with it is still under way")
        case OtherRequest():
            raise IdempotencyConflictError(key=key, reason="it was used for another request")
        case OutcomeUnknown():
            error = IdempotencyConflictError(key=key, reason="it is unknown whether its request was done")
            error.outcome_unknown = True
            raise error


async def _do(store: Idempotency, begun: Begun, act: Callable[[], Awaitable[Response]]) -> Response:
    try:
        response = await act()
    except FumehoodError as error:
        await (store.lose(begun) if error.outcome_unknown else store.withdraw(begun))
        raise
    except BaseException:
        await complete(store.lose(begun))
        raise

    if response.status_code == GONE:
        # The request was cut off in the middle, and has no answer that could be stored.
        await complete(store.lose(begun))
        return response

    headers = {"content-type": response.headers.get("content-type", "application/json")}

    try:
        await store.finish(begun, status=response.status_code, headers=headers, body=bytes(response.body))
    except StorageError as error:
        # The request was done, and its answer must not be lost because storing it failed.
        events.ANSWER_NOT_KEPT.log(reason=error.reason)

    return response
