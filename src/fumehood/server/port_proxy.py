"""Carries HTTP and WebSocket between a client and a server that runs inside a sandbox.

Runs in the server process, over a byte stream of the port. What the guest answers is hostile: it is parsed by
h11 and websockets with bounds, its hop-by-hop headers end here, and the token that opened the way never goes
in. Whether the caller may come is decided before (`port_access.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

import h11
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fumehood.backends.base import Backend
from fumehood.backends.streams import ByteStream
from fumehood.errors import SandboxError
from fumehood.server.port_websocket import carry_websocket
from fumehood.service_errors import BadGatewayError

# RFC 9110, 7.6.1: what is between two neighbours only.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SECRETS = frozenset({"authorization", "x-api-key", "x-access-token", "e2b-traffic-access-token", "cookie"})
_MAX_HEAD_BYTES = 64 * 1024
# Guest pages in the server's own origin: scripts run, but in an origin of their own that nothing trusts.
_SANDBOX_POLICY = (
    "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads allow-pointer-lock"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTarget:
    """Where a request goes, and how it came there.

    Attributes:
        sandbox_id: The sandbox.
        port: The port of its loopback.
        path: Path and query for the server inside, as they were sent.
        prefix: What of the outer path is not seen inside.
        own_origin: True when the sandbox has a host name of its own, so that its pages and cookies are apart
            from the server's.
        keep_credentials: True when headers with credentials are meant for the server inside, because none of
            them was needed to come here.
    """

    sandbox_id: str
    port: int
    path: str
    prefix: str = ""
    own_origin: bool = False
    keep_credentials: bool = False


async def proxy_http(backend: Backend, target: PortTarget, request: Request) -> Response:
    """Carries one request in and its answer out, both as streams.

    Raises:
        PortClosedError: Nothing listens there.
        BadGatewayError: What listens there does not speak HTTP.
    """
    stream = await backend.open_port(target.sandbox_id, target.port)
    exchange = _Exchange(stream, request, target)

    try:
        return await exchange.begin()
    except BaseException:
        await exchange.close()
        raise


async def proxy_websocket(backend: Backend, target: PortTarget, websocket: WebSocket) -> None:
    """Carries one WebSocket connection until either side ends it.

    Raises:
        PortClosedError: Nothing listens there.
        BadGatewayError: What listens there does not speak WebSocket.
    """
    headers = inner_headers(websocket, target)
    stream = await backend.open_port(target.sandbox_id, target.port)

    try:
        await carry_websocket(stream, target.port, target.path, headers, websocket)
    finally:
        await stream.close()


def inner_headers(connection: HTTPConnection, target: PortTarget) -> list[tuple[str, str]]:
    """Returns the headers that the server inside gets to see."""
    named = {word.strip().lower() for word in connection.headers.get("connection", "").split(",")}
    dropped = _HOP_BY_HOP | named | {"host"} | (frozenset() if target.keep_credentials else _SECRETS)
    headers = [(name, value) for name, value in connection.headers.items() if name.lower() not in dropped]
    outer = connection.url
    return [
        # Development servers refuse names that they do not know.
        ("host", f"localhost:{target.port}"),
        *headers,
        ("x-forwarded-host", outer.netloc),
        ("x-forwarded-proto", outer.scheme),
        ("x-forwarded-prefix", target.prefix),
    ]


def outer_headers(
    headers: Iterable[tuple[bytes, bytes]], request: Request, target: PortTarget
) -> list[tuple[bytes, bytes]]:
    """Returns the headers of an answer as the client gets them."""
    kept = [
        (name, value)
        for name, value in headers
        if name.decode("latin-1") not in _HOP_BY_HOP and name != b"service-worker-allowed"
    ]

    if target.own_origin:
        # A cookie for the whole domain would reach other people's sandboxes.
        return [
            (name, value) for name, value in kept if name != b"set-cookie" or b"domain" not in value.lower()
        ]

    kept = [(name, value) for name, value in kept if name != b"set-cookie"]
    kept.append((b"content-security-policy", _SANDBOX_POLICY.encode()))
    kept.append((b"cross-origin-resource-policy", b"cross-origin"))

    if request.headers.get("origin") == "null":
        # A page of this very server, in the origin of its own that the policy gave it.
        kept.append((b"access-control-allow-origin", b"null"))

    return kept


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self, stream: ByteStream, request: Request, target: PortTarget) -> None:
        self._stream = stream
        self._request = request
        self._target = target
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._sending: asyncio.Task[None] | None = None

    async def begin(self) -> Response:
        """Sends the request, and returns when the head of the answer is there."""
        headers = inner_headers(self._request, self._target)
        has_body = "content-length" in self._request.headers or "transfer-encoding" in self._request.headers

        if has_body and "content-length" not in self._request.headers:
            headers.append(("transfer-encoding", "chunked"))

        try:
            head = h11.Request(method=self._request.method, target=self._target.path, headers=headers)
            await self._stream.write(self._http.send(head) or b"")
            # The server inside may answer before it has read everything.
            self._sending = asyncio.create_task(self._send_body(has_body))
            answer = await self._head()
        except h11.ProtocolError as error:
            raise BadGatewayError(port=self._target.port, reason=str(error)) from None

        return _Carried(self, answer.status_code, outer_headers(answer.headers, self._request, self._target))

    async def close(self) -> None:
        """Ends the connection, whatever is under way on it."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

        await self._stream.close()

    async def _send_body(self, has_body: bool) -> None:
        try:
            if has_body:
                async for chunk in self._request.stream():
                    if chunk:
                        await self._stream.write(self._http.send(h11.Data(data=chunk)) or b"")

            await self._stream.write(self._http.send(h11.EndOfMessage()) or b"")
        except (BrokenPipeError, SandboxError):
            # It wants no more; its answer says why.
            return

    async def _head(self) -> h11.Response:
        while True:
            event = await self._next()

            if isinstance(event, h11.Response):
                return event

            # 1xx are between neighbours; anything else cannot come before a head.
            if not isinstance(event, h11.InformationalResponse):
                raise BadGatewayError(
                    port=self._target.port, reason="it closed the connection without an answer"
                )

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yields the body of the answer; raises where it breaks off, so that the client sees it break off."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> h11.Event | None:
        """Returns what comes next of the answer, or None when the connection has become another protocol."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.read())

        return event if isinstance(event, h11.Event) else None


class _Carried(StreamingResponse):
    """The answer of the server inside; the connection to it ends with the answer, also when nobody waits for it."""

    def __init__(self, exchange: _Exchange, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(exchange.body(), status)
        self.raw_headers = headers
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._exchange.close()
