"""HTTP to the host daemon of another machine, carried by the adapter of that machine.

Runs in the server process, on its loop. It only carries: requests and answers are those of `fumehood.client`, which
knows what they mean. A request whose whole answer is wanted at once costs one call of Ray; any other request is a
stream.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, suppress
from typing import TypeVar

import httpx2

from fumehood.cancellation import cancel_and_wait
from fumehood.client.connection import WHOLE_ANSWER, Carrier
from fumehood.cluster.exchange import PIECE_BYTES, ExchangeReply, pack_headers
from fumehood.cluster.machine import BrokenOffError, Machine, NotSentError

# The adapter makes them for its own connection to the daemon.
_DROPPED_HEADERS = (b"connection", b"host", b"transfer-encoding")
_T = TypeVar("_T")


class AdapterCarrier(Carrier, httpx2.AsyncBaseTransport):
    """Carries requests and connections to a host daemon through the adapter of its machine.

    Args:
        machine: The machine of the adapter.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tunnels: set[asyncio.Task[None]] = set()

    def transport(self) -> httpx2.AsyncBaseTransport:
        """Returns the transport of requests."""
        return self

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request and returns its answer.

        Raises:
            httpx2.ConnectError: The machine cannot be reached: nothing was begun. httpx2.ReadError: The connection
            broke off: the outcome is unknown.
        """
        headers = [header for header in request.headers.raw if header[0].lower() not in _DROPPED_HEADERS]
        is_short = isinstance(request.stream, httpx2.ByteStream)
        body = await request.aread() if is_short else b""
        name = "" if len(body) <= PIECE_BYTES and is_short else secrets.token_hex(16)
        target = request.url.raw_path.decode("ascii")
        asked = (request.method, target, pack_headers(headers), b"" if name else body, name)
        sending = asyncio.create_task(self._upload(name, request)) if name else None

        try:
            if request.extensions.get(WHOLE_ANSWER):
                answer = await _with_upload(self._machine.call(*asked), sending)
                return httpx2.Response(answer.status, headers=answer.headers, content=answer.body)

            pieces = self._machine.stream("stream", *asked)
            head = await _with_upload(anext(pieces), sending)
        except NotSentError as error:
            raise httpx2.ConnectError(str(error), request=request) from None
        except BrokenOffError as error:
            raise httpx2.ReadError(str(error), request=request) from None

        assert isinstance(head, ExchangeReply)
        return httpx2.Response(head.status, headers=head.headers, stream=_Body(pieces, request))

    async def open_socket(self) -> socket.socket:
        """Returns a socket that is connected to the host daemon through the adapter.

        Raises:
            ConnectionError: The machine cannot be reached.
        """
        name = secrets.token_hex(16)
        pieces = self._machine.stream("connect", name)
        await anext(pieces)  # its head: the connection is made
        ours, given = socket.socketpair()
        task = asyncio.create_task(self._relay(name, pieces, ours))
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)
        return given

    async def aclose(self) -> None:
        """Ends all connections."""
        await cancel_and_wait(*self._tunnels)

    async def _upload(self, name: str, request: httpx2.Request) -> None:
        """Sends the body of a request in pieces; the adapter ends the request if it ends early."""
        assert isinstance(request.stream, httpx2.AsyncByteStream)

        with suppress(ConnectionError):
            async for piece in request.stream:
                for start in range(0, len(piece), PIECE_BYTES):
                    await self._machine.feed(name, piece[start : start + PIECE_BYTES])

            await self._machine.feed(name, b"")

    async def _relay(
        self, name: str, pieces: AsyncGenerator[bytes | ExchangeReply, None], ours: socket.socket
    ) -> None:
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        sending = asyncio.create_task(self._send(name, reader))

        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    assert isinstance(piece, bytes)
                    writer.write(piece)
                    await writer.drain()
        except ConnectionError:
            # The other end reads that the connection has ended, as it would read of a broken one.
            return
        finally:
            await cancel_and_wait(sending)
            writer.close()

    async def _send(self, name: str, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(PIECE_BYTES):
                await self._machine.feed(name, data)

            await self._machine.feed(name, b"")


async def _with_upload(work: Awaitable[_T], sending: asyncio.Task[None] | None) -> _T:
    """Returns the result of the work, which an upload feeds; an error of the upload's source ends the work."""
    if sending is None:
        return await work

    task = asyncio.ensure_future(work)

    try:
        await asyncio.wait({task, sending}, return_when=asyncio.FIRST_COMPLETED)

        if sending.done() and (error := sending.exception()) is not None:
            raise error

        return await task
    finally:
        await cancel_and_wait(task, sending)


class _Body(httpx2.AsyncByteStream):
    """The body of an answer; closing it early ends the request at the daemon."""

    def __init__(self, pieces: AsyncGenerator[bytes | ExchangeReply, None], request: httpx2.Request) -> None:
        self._pieces = pieces
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                assert isinstance(piece, bytes)
                yield piece
        except (BrokenOffError, NotSentError) as error:
            raise httpx2.ReadError(str(error), request=self._request) from None

    async def aclose(self) -> None:
        await self._pieces.aclose()
