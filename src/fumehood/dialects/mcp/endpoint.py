"""The endpoint of the route: authenticates the caller, bounds the body, and passes the request to the SDK.

The caller is authenticated before a byte of the body is read; the body is bounded in bytes and in values, because a
small body can become a large one in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from fumehood.cancellation import cancel_and_wait, wait_shared
from fumehood.errors import FumehoodError, RequestTooLargeError, ServerEndingError
from fumehood.server.admission import LOST_RIGHT, sent_while_right_lasts, while_right_lasts
from fumehood.server.allowance import most_network
from fumehood.server.auth import principal_of
from fumehood.server.connections import break_off
from fumehood.server.drain import RETRY_SECONDS
from fumehood.server.services import Services
from fumehood.values.json_values import check_values

if TYPE_CHECKING:
    from fumehood.mcp.http import HttpTransport

# A file of eight million characters, escaped, and the message around it.
_MAX_BODY_BYTES = 16 << 20


class McpEndpoint:
    """An app for one path.

    Args:
        services: The services of the handlers.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._max_bytes = min(_MAX_BODY_BYTES, services.settings.max_body_bytes)
        self._loading: asyncio.Task[HttpTransport] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request.

        Raises:
            FumehoodError: The request is refused before the protocol begins; the app turns the error into a response.
        """
        request = Request(scope, receive)
        principal = await principal_of(request)
        principal.require("sandboxes")
        body = await self._body(request)
        check_values(body)
        transport = await self._transport()
        backend = self._services.backend_for(principal)
        given = _once_more(body, receive)
        most = most_network(self._services.settings, principal.policy)
        await self._until_over(scope, send, lambda sent: transport.answer(scope, given, sent, backend, most))

    async def _until_over(
        self, scope: Scope, send: Send, answer: Callable[[Send], Coroutine[None, None, None]]
    ) -> None:
        """Answers, or breaks off when the server ends and its grace time is over."""
        is_begun = False

        async def send_on(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        answering = asyncio.create_task(while_right_lasts(answer(send_on)))
        over = asyncio.create_task(self._services.drain.over.wait())
        try:
            await asyncio.wait({answering, over}, return_when=asyncio.FIRST_COMPLETED)

            if answering.done():
                await answering
                return
        except FumehoodError as error:
            # The app makes a response of it, unless one has begun: that ends without a result.
            if not is_begun:
                raise

            if not isinstance(error, LOST_RIGHT):
                await break_off(scope, error.message)
                return
        finally:
            await cancel_and_wait(answering, over)

        if not is_begun:
            raise ServerEndingError(retry_after_seconds=RETRY_SECONDS, outcome_unknown=True)

        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _transport(self) -> HttpTransport:
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_load, self._max_bytes))

        return await wait_shared(self._loading)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()

        async for piece in sent_while_right_lasts(request.stream()):
            body += piece

            if len(body) > self._max_bytes:
                raise RequestTooLargeError(what="message", maximum=self._max_bytes)

        return bytes(body)


def _load(max_body_bytes: int) -> HttpTransport:
    """Loads the SDK in a thread at the first request: it takes half a second and 30 MB."""
    from fumehood.mcp.http import HttpTransport

    return HttpTransport(max_body_bytes)


def _once_more(body: bytes, receive: Receive) -> Receive:
    """Returns an ASGI `receive` that first yields a body that was already read, then the client's further messages."""
    is_given = False

    async def give() -> Message:
        nonlocal is_given

        if is_given:
            return await receive()

        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
