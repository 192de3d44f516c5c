"""The adapter of a machine: an actor of Ray that passes requests of servers on to the host daemon's socket.

Runs in a worker process of Ray, one on each machine. It must not make a sandbox, parse what a guest has written, or
raise: Ray would carry an exception as a pickle. Every answer is `bytes` (`exchange`). When the adapter dies, the host
daemon and its sandboxes live on, and the next adapter of the machine reaches the same ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpcore2

from fumehood.cluster.exchange import BROKEN_OFF, NOT_REACHED, PIECE_BYTES, pack, unpack_headers
from fumehood.log.traces import TRACE_HEADER, TRACES

# `fumehood cluster` and the units give it to Ray, whose workers inherit it.
SOCKET_VARIABLE = "FUMEHOOD_HOST_SOCKET"
_CONNECT_SECONDS = 10.0
_MAX_CONNECTIONS = 10_000
_KEPT_CONNECTIONS = 100
# Less than the daemon keeps an idle connection: one that it closes just then would fail the next request.
_KEPT_SECONDS = 2.0
# Pieces of one upload that wait for the host daemon.
_MAX_WAITING = 8
# A server that died in the middle of an upload leaves it here.
_MAX_UPLOADS = 4096
_TRACE = TRACE_HEADER.encode()
_NOT_BEGUN = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)


class HostAdapter:
    """Passes requests on to the host daemon of its machine.

    Args:
        socket_path: The daemon's socket; empty: the one that the environment of this machine's Ray names.
    """

    def __init__(self, socket_path: str = "") -> None:
        self._socket_path = socket_path or os.environ.get(SOCKET_VARIABLE, "")
        self._pool: httpcore2.AsyncConnectionPool | None = None
        TRACES.begin(os.environ, "fumehood-adapter")
        self._uploads: OrderedDict[str, asyncio.Queue[bytes]] = OrderedDict()

    async def call(self, method: str, target: str, headers: bytes, body: bytes, upload: str) -> bytes:
        """Sends a request and returns its whole answer, packed.

        Args:
            method: The HTTP method.
            target: The path and the query.
            headers: The headers, packed.
            body: The body, unless it is uploaded.
            upload: The name of an upload that is the body, or "".
        """
        try:
            async with self._opened(method, target, headers, body, upload) as response:
                return pack(response.status, response.headers, await response.aread())
        except _NOT_BEGUN as error:
            return pack(NOT_REACHED, (), _reason(error))
        except Exception as error:  # noqa: BLE001 - Ray would carry it as a pickle.
            return pack(BROKEN_OFF, (), _reason(error))
        finally:
            self._uploads.pop(upload, None)

    async def stream(
        self, method: str, target: str, headers: bytes, body: bytes, upload: str
    ) -> AsyncGenerator[bytes, None]:
        """Sends a request and yields the packed head of its answer, then its body in pieces.

        A last piece is empty: an answer without it was cut off.
        """
        has_head = False

        try:
            async with self._opened(method, target, headers, body, upload) as response:
                yield pack(response.status, response.headers, b"")
                has_head = True

                async for piece in response.aiter_stream():
                    for start in range(0, len(piece), PIECE_BYTES):
                        yield piece[start : start + PIECE_BYTES]

                yield b""
        except _NOT_BEGUN as error:
            yield pack(NOT_REACHED, (), _reason(error))
        except Exception as error:  # noqa: BLE001 - Ray would carry it as a pickle.
            if not has_head:
                yield pack(BROKEN_OFF, (), _reason(error))
        finally:
            self._uploads.pop(upload, None)

    async def connect(self, name: str) -> AsyncGenerator[bytes, None]:
        """Opens a connection to the daemon; yields a packed answer, then the received bytes.

        Sends the pieces of the upload `name`, and closes the connection at the end of the upload.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket_path)
        except OSError as error:
            yield pack(NOT_REACHED, (), _reason(error))
            return

        sending = asyncio.create_task(self._send(name, writer))

        try:
            yield pack(200, (), b"")

            with suppress(OSError):
                while data := await reader.read(PIECE_BYTES):
                    yield data
        finally:
            sending.cancel()
            self._uploads.pop(name, None)
            writer.close()

    async def feed(self, name: str, piece: bytes) -> bytes:
        """Adds a piece to an upload, or ends it with an empty one; waits while the daemon does not read."""
        await self._upload(name).put(piece)
        return b""

    @asynccontextmanager
    async def _opened(
        self, method: str, target: str, headers: bytes, body: bytes, upload: str
    ) -> AsyncIterator[Any]:
        if self._pool is None:
            # Here, since it belongs to the loop of the actor.
            self._pool = httpcore2.AsyncConnectionPool(
                uds=self._socket_path,
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_KEPT_CONNECTIONS,
                keepalive_expiry=_KEPT_SECONDS,
            )

        given = unpack_headers(headers)
        parent = next((value for name, value in given if name.lower() == _TRACE), b"").decode("latin-1")
        others = [header for header in given if header[0].lower() != _TRACE]

        with TRACES.span("adapter", parent) as trace:
            async with self._pool.stream(
                method,
                f"http://host{target}",
                headers=[*others, *([(_TRACE, trace.encode("latin-1"))] if trace else [])],
                content=self._pieces(upload) if upload else body,
                extensions={"timeout": {"connect": _CONNECT_SECONDS}},
            ) as response:
                yield response

    def _upload(self, name: str) -> asyncio.Queue[bytes]:
        queue = self._uploads.get(name)

        if queue is None:
            queue = self._uploads[name] = asyncio.Queue(_MAX_WAITING)

            if len(self._uploads) > _MAX_UPLOADS:
                self._uploads.popitem(last=False)

        return queue

    async def _pieces(self, name: str) -> AsyncIterator[bytes]:
        queue = self._upload(name)

        while piece := await queue.get():
            yield piece

    async def _send(self, name: str, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            async for piece in self._pieces(name):
                writer.write(piece)
                await writer.drain()

        writer.close()


def _reason(error: Exception) -> bytes:
    return (str(error) or type(error).__name__).encode()[:1000]
