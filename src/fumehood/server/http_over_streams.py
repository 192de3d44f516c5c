"""HTTP over the byte streams of sandboxes: a program inside is the client, an app of this process answers.

Every byte comes from a guest, so only what programs need is understood: requests one after another, each with a short
head and a body whose length is given in the head. The heads are read by the strict reader of the egress proxy, and a
head that it refuses ends the connection. The bytes and pieces that all connections of a sandbox may send in a second
are bounded. The app decides which requests of the guest it carries out.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from fumehood.bounds import KIB, MIB
from fumehood.cancellation import cancel_and_wait
from fumehood.egress.http_messages import HEAD_END, HeadError, RequestHead, read_request_head
from fumehood.errors import FumehoodError
from fumehood.port.backend import ByteStream
from fumehood.server.connections import BREAKING

MAX_HEAD_BYTES = 8 * KIB
MAX_BODY_BYTES = 256 * KIB
_REQUEST_SECONDS = 15.0
_BYTES_PER_SECOND = 4 * MIB
# Pieces of a byte cost as much to receive as longer ones.
_PIECE_BYTES = 8 * KIB
_BURST_SECONDS = 0.25
# Each connection takes two descriptors of this process.
_SHARE_OF_DESCRIPTORS = 16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Pace:
    """The rate at which one sandbox may send, shared by its connections."""

    def __init__(self) -> None:
        self._due_at = 0.0

    async def wait(self, count: int) -> None:
        """Waits until the rate allows one more piece, of `count` bytes."""
        now = asyncio.get_running_loop().time()
        self._due_at = max(self._due_at, now - _BURST_SECONDS) + (count + _PIECE_BYTES) / _BYTES_PER_SECOND

        if self._due_at > now:
            await asyncio.sleep(self._due_at - now)


class StreamServer:
    """Answers requests over streams.

    Args:
        app: The app that answers the requests; `scope["state"]` is the `state` given to `serve`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_DESCRIPTORS

    async def serve(self, stream: ByteStream, pace: Pace, state: dict[str, object]) -> None:
        """Serves one connection to its end; with too many open it is closed at once.

        Args:
            stream: The connection; closed at the end.
            pace: The rate of the sandbox.
            state: The state that the app finds in each request.
        """
        async with stream:
            if self._open >= self._most:
                return

            self._open += 1
            try:
                await _Connection(_Incoming(stream, pace), stream, self._app, state).serve()
            finally:
                self._open -= 1


class _RefusedError(Exception):
    """A request that is not read to its end."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Incoming:
    """Received bytes that no request has consumed yet.

    Args:
        stream: The connection that the bytes come from.
        pace: The rate of the sandbox.
    """

    def __init__(self, stream: ByteStream, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace
        self._bytes = bytearray()
        # Outlives a wait that is given up: what it has received must not be lost.
        self._reading: asyncio.Task[bytes] | None = None

    async def head(self) -> RequestHead | None:
        """Returns the next head; None at the end of the connection.

        Raises:
            HeadError: The head is malformed or ambiguous.
            _RefusedError: The head is too long.
        """
        while (end := self._bytes.find(HEAD_END, 0, MAX_HEAD_BYTES)) < 0:
            if len(self._bytes) >= MAX_HEAD_BYTES:
                raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

            if not await self._fill():
                return None

        return read_request_head(self._take(end + len(HEAD_END)))

    async def body(self, size: int) -> bytes | None:
        """Returns a body of this size; None if the connection ends too early."""
        while len(self._bytes) < size:
            if not await self._fill():
                return None

        return self._take(size)

    async def end(self) -> None:
        """Waits until the program has disconnected, or has sent more than the head of its next request."""
        while len(self._bytes) < MAX_HEAD_BYTES:
            if not await self._fill():
                return

    async def close(self) -> None:
        """Cancels the pending read."""
        if self._reading is not None:
            await cancel_and_wait(self._reading)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    async def _fill(self) -> bool:
        """Receives the next bytes; returns False at the end of the stream."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._stream.read())

        await asyncio.wait((self._reading,))
        reading, self._reading = self._reading, None
        try:
            data = reading.result()
        except FumehoodError:
            # The sandbox has ended.
            return False

        self._bytes += data
        await self._pace.wait(len(data))
        return bool(data)


class _Connection:
    """One connection: its requests, one after another."""

    def __init__(
        self, incoming: _Incoming, stream: ByteStream, app: ASGIApp, state: dict[str, object]
    ) -> None:
        self._incoming = incoming
        self._stream = stream
        self._app = app
        self._state = state

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                pass
        except _RefusedError as refused:
            await self._refuse(refused.status)
        except HeadError:
            await self._refuse(HTTPStatus.BAD_REQUEST)
        except (TimeoutError, FumehoodError, OSError):
            # It is too slow, the program has left, or the sandbox has ended.
            return
        finally:
            await self._incoming.close()

    async def _serve_one(self) -> bool:
        """Answers a request; False if there is none, or if the connection ends after it."""
        async with asyncio.timeout(_REQUEST_SECONDS):
            head = await self._incoming.head()
            body = None if head is None else await self._body(head)

        if head is None or body is None:
            return False

        if not head.target.startswith("/"):
            raise HeadError("only a path is asked for")

        exchange = _Exchange(head, body, self._stream)
        leaving = asyncio.create_task(self._incoming.end())
        leaving.add_done_callback(exchange.note_left)
        try:
            await self._app(exchange.scope(self._state), exchange.receive, exchange.send)
        finally:
            has_left = leaving.done()
            await cancel_and_wait(leaving)

        return exchange.is_complete and exchange.is_kept_alive and not has_left

    async def _body(self, head: RequestHead) -> bytes | None:
        if head.body_bytes is None:
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED)

        if head.body_bytes > MAX_BODY_BYTES:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

        if head.expects_continue:
            await self._stream.write(_CONTINUE)

        return await self._incoming.body(head.body_bytes)

    async def _refuse(self, status: HTTPStatus) -> None:
        said = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        try:
            await self._stream.write(said.encode())
        except (FumehoodError, OSError):
            return


class _Exchange:
    """One request with its response, as an ASGI app sees them.

    Attributes:
        over: Set when the response is complete, or the program has left.
        is_complete: Whether the response is.
        is_kept_alive: Whether another request may follow.
    """

    def __init__(self, head: RequestHead, body: bytes, stream: ByteStream) -> None:
        self._head = head
        self._body: bytes | None = body
        self._stream = stream
        self._begun: Message = {}
        self._has_body = head.method != "HEAD"
        self._is_chunked = False
        self.over = asyncio.Event()
        self.is_complete = False
        self.is_kept_alive = not head.is_old and not _says_close(head.headers)

    def scope(self, state: dict[str, object]) -> dict[str, Any]:
        """Returns the scope of the request."""
        path, _, query = self._head.target.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self._head.method,
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": [(name.encode("ascii"), value) for name, value in self._head.headers],
            "client": None,
            "server": None,
            "state": dict(state),
            "extensions": {BREAKING: self._break_off},
        }

    def note_left(self, _leaving: asyncio.Task[None]) -> None:
        """Ends the exchange when the response was sent completely, or the program can no longer receive it."""
        self.over.set()

    async def receive(self) -> Message:
        """Returns the body, and then the end of the exchange."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}

        await self.over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Sends a part of the response; does nothing if the program has disconnected."""
        if self.over.is_set():
            return

        if message["type"] == "http.response.start":
            self._begun = message
            return

        data = self._beginning() + self._piece(message.get("body", b""))
        is_last = not message.get("more_body", False)

        if is_last and self._is_chunked:
            data += _LAST_CHUNK

        try:
            await self._stream.write(data)
        except (FumehoodError, OSError):
            self.over.set()
            return

        if is_last:
            self.is_complete = True
            self.over.set()

    def _beginning(self) -> bytes:
        """Returns the head of the response at the first call, and then empty bytes."""
        if not self._begun:
            return b""

        begun, self._begun = self._begun, {}
        headers = [(bytes(name).lower(), bytes(value)) for name, value in begun["headers"]]
        status = HTTPStatus(begun["status"])
        self._has_body = self._has_body and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        self._is_chunked = self._has_body and not any(name == b"content-length" for name, _ in headers)

        if (b"connection", b"close") in headers:
            self.is_kept_alive = False
        elif not self.is_kept_alive:
            headers.append((b"connection", b"close"))

        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))

        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        return b"\r\n".join([*lines, *(b"%s: %s" % one for one in headers)]) + HEAD_END

    def _piece(self, data: bytes) -> bytes:
        if not self._has_body or not data:
            return b""

        return b"%x\r\n%s\r\n" % (len(data), data) if self._is_chunked else data

    async def _break_off(self) -> None:
        self.over.set()
        await self._stream.close()


def _says_close(headers: Iterable[tuple[str, bytes]]) -> bool:
    return any(name == "connection" and b"close" in value.lower() for name, value in headers)
