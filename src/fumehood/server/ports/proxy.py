"""Carries HTTP and WebSocket between a client and a server that runs inside a sandbox.

Runs in the server process, over a byte stream of the port. The responses of the guest are hostile: they are parsed by
h11 and websockets with bounds, their hop-by-hop headers end here, and the token of the caller is never passed in.
`access.py` has checked before whether the caller is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fumehood.cancellation import cancel_and_wait
from fumehood.errors import BadGatewayError, FumehoodError, SandboxError
from fumehood.port.backend import Backend, ByteStream
from fumehood.server.admission import while_right_lasts
from fumehood.server.connections import break_off
from fumehood.server.ports.headers import Header, PortTarget, inner_headers, outer_headers
from fumehood.server.ports.websocket import carry_websocket
from fumehood.server.responses import GONE, send_bytes

_MAX_HEAD_BYTES = 64 * 1024
_MAX_INTERIM = 32
_LAST_STATUS = 599
# Part of the state of a request.
_OF_GUEST = "fumehood.answer_of_guest"
_T = TypeVar("_T")


async def proxy_http(backend: Backend, target: PortTarget, request: Request) -> Response:
    """Passes one request to the server inside and its response to the client, both as streams.

    Raises:
        PortClosedError: No program listens on the port.
        BadGatewayError: The server inside does not speak HTTP.
        FumehoodError: The caller's credential is not valid any more.
    """
    stream = await backend.open_port(target.sandbox_id, target.port)
    exchange = _Exchange(stream, request, target)

    try:
        return await while_right_lasts(exchange.begin())
    except BaseException:
        await exchange.close()
        raise


async def proxy_websocket(backend: Backend, target: PortTarget, websocket: WebSocket) -> None:
    """Carries one WebSocket connection until either side ends it.

    Raises:
        PortClosedError: No program listens on the port.
        BadGatewayError: The server inside does not speak WebSocket.
    """
    headers = inner_headers(websocket, target)
    stream = await backend.open_port(target.sandbox_id, target.port)

    try:
        await carry_websocket(stream, target.port, target.path, headers, websocket)
    finally:
        await stream.close()


def is_answer_of_guest(scope: Scope) -> bool:
    """Returns whether a server in a sandbox has answered this request, so that its status is not our refusal."""
    return bool(scope.get("state", {}).get(_OF_GUEST, False))


class _Exchange:
    """One request and its response on one connection."""

    def __init__(self, stream: ByteStream, request: Request, target: PortTarget) -> None:
        self._stream = stream
        self._request = request
        self._target = target
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._sending: asyncio.Task[None] | None = None

    async def begin(self) -> Response:
        """Sends the request, and returns when the head of the response has arrived."""
        headers = inner_headers(self._request, self._target)
        has_body = "content-length" in self._request.headers or "transfer-encoding" in self._request.headers

        if has_body and "content-length" not in self._request.headers:
            headers.append(("transfer-encoding", "chunked"))

        try:
            head = h11.Request(method=self._request.method, target=self._target.path, headers=headers)
            await self._stream.write(self._http.send(head) or b"")
            # The server inside may answer before it has read everything.
            self._sending = asyncio.create_task(self._send_body(has_body))
            answer = await self._unless_gone(self._head())
        except h11.ProtocolError as error:
            raise BadGatewayError(port=self._target.port, reason=str(error)) from None

        if answer is None:
            await self.close()
            return Response(status_code=GONE)

        kept = outer_headers(answer.status_code, answer.headers, self._request, self._target)
        return _Carried(self, answer.status_code, kept)

    async def carry(self, send: Send) -> None:
        """Sends the body of the response, until it ends or the client disconnects."""
        await self._unless_gone(self._carry(send))

    async def close(self) -> None:
        """Closes the connection, also in the middle of a message."""
        if self._sending is not None:
            await cancel_and_wait(self._sending)

        await self._stream.close()

    async def _unless_gone(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Returns the result of `work`, or None if the client disconnects first."""
        assert self._sending is not None
        task = asyncio.create_task(work)

        try:
            await asyncio.wait({task, self._sending}, return_when=asyncio.FIRST_COMPLETED)

            if task.done():
                return task.result()

            # For instance, the client has sent more than it may.
            self._sending.result()
            return None
        finally:
            await cancel_and_wait(task)

    async def _send_body(self, has_body: bool) -> None:
        """Passes the request body on, and returns when the client disconnects: only this task notices that."""
        try:
            await self._pass_in(has_body)
        except ClientDisconnect:
            return
        except (BrokenPipeError, SandboxError, h11.ProtocolError):
            # The server inside reads no more; its response says why.
            pass

        while (await self._request.receive())["type"] != "http.disconnect":
            continue

    async def _pass_in(self, has_body: bool) -> None:
        if has_body:
            async for chunk in self._request.stream():
                if chunk:
                    await self._stream.write(self._http.send(h11.Data(data=chunk)) or b"")

        await self._stream.write(self._http.send(h11.EndOfMessage()) or b"")

    async def _carry(self, send: Send) -> None:
        while isinstance(event := await self._next(), h11.Data):
            # An error raised here resets the connection, so that the client does not take the part for the whole.
            await send_bytes(bytes(event.data), send)

        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _head(self) -> h11.Response:
        for _ in range(_MAX_INTERIM):
            event = await self._next()

            if isinstance(event, h11.Response):
                return self._checked(event)

            # 1xx responses concern one connection only; nothing else can come before a head.
            if not isinstance(event, h11.InformationalResponse):
                raise self._refused("it closed the connection without an answer")

        raise self._refused("it sent interim answers without an end")

    def _checked(self, answer: h11.Response) -> h11.Response:
        if answer.status_code > _LAST_STATUS:
            raise self._refused(f"its status is {answer.status_code}")

        return answer

    def _refused(self, reason: str) -> BadGatewayError:
        return BadGatewayError(port=self._target.port, reason=reason)

    async def _next(self) -> h11.Event | None:
        """Returns the next event of the response, or None when the connection has changed its protocol."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.read())

        return event if isinstance(event, h11.Event) else None


class _Carried(Response):
    """Sends the response of the server inside, and then closes the connection to it, also if the client has left."""

    def __init__(self, exchange: _Exchange, status: int, headers: list[Header]) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = headers
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer."""
        scope.setdefault("state", {})[_OF_GUEST] = True
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await while_right_lasts(self._exchange.carry(send))
        except (FumehoodError, h11.ProtocolError) as error:
            await break_off(scope, str(error))
        finally:
            await self._exchange.close()
