"""HTTP over the byte streams of sandboxes: a program inside is the client, an app of this process answers.

Runs in the server process. The bytes come from a guest: uvicorn parses them with the bounds that connections from
outside have, at a rate of bytes that all connections of a sandbox share. What the app may do for the guest is the app's
to decide.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from fumehood.bounds import MIB
from fumehood.cancellation import cancel_and_wait
from fumehood.errors import FumehoodError
from fumehood.port.backend import ByteStream
from fumehood.server.connections import bounded_http

_HEAD_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 15
_READ_BYTES = 1 << 16
_BYTES_PER_SECOND = 4 * MIB
# Each connection takes three descriptors of this process.
_SHARE_OF_DESCRIPTORS = 24

# A guest that sends what is no HTTP is no event of this server.
_SILENT = logging.Logger("fumehood.silent")
_SILENT.addHandler(logging.NullHandler())


class Pace:
    """The rate of bytes from one sandbox, shared by its connections."""

    def __init__(self) -> None:
        self._due_at = 0.0

    async def wait(self, count: int) -> None:
        """Returns when so many bytes more are within the rate."""
        now = asyncio.get_running_loop().time()
        self._due_at = max(self._due_at, now) + count / _BYTES_PER_SECOND
        await asyncio.sleep(self._due_at - now)


class StreamServer:
    """Answers requests over streams.

    Args:
        app: Answers them; `scope["state"]` holds what `serve` was called with.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._http = bounded_http(head_seconds=_HEAD_SECONDS)
        self._config = uvicorn.Config(
            app,
            http=self._http,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._open = 0
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_DESCRIPTORS

    async def serve(self, stream: ByteStream, pace: Pace, state: dict[str, object]) -> None:
        """Serves one connection to its end; with too many open it is closed at once.

        Args:
            stream: The connection; closed at the end.
            pace: The rate of the sandbox.
            state: What the app finds in the state of each request.
        """
        async with stream:
            if self._open >= self._most:
                return

            self._open += 1
            try:
                await self._serve(stream, pace, state)
            finally:
                self._open -= 1

    async def _serve(self, stream: ByteStream, pace: Pace, state: dict[str, object]) -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)

        with near:
            transport, _ = await loop.connect_accepted_socket(lambda: self._protocol(state), far)
            inward = asyncio.create_task(_inward(stream, near, pace))
            try:
                await _outward(near, stream)
            except (FumehoodError, OSError):
                # The sandbox has ended, or the program inside has left.
                pass
            finally:
                transport.abort()
                await cancel_and_wait(inward)

    def _protocol(self, state: dict[str, object]) -> asyncio.Protocol:
        protocol = self._http(config=self._config, server_state=self._state, app_state=state)
        protocol.logger = _SILENT
        return protocol


async def _inward(stream: ByteStream, near: socket.socket, pace: Pace) -> None:
    """Passes on what the program sends; its end ends the connection, as it does for clients outside."""
    loop = asyncio.get_running_loop()
    try:
        while data := await stream.read():
            await pace.wait(len(data))
            await loop.sock_sendall(near, data)
    finally:
        near.shutdown(socket.SHUT_WR)


async def _outward(near: socket.socket, stream: ByteStream) -> None:
    loop = asyncio.get_running_loop()

    while data := await loop.sock_recv(near, _READ_BYTES):
        await stream.write(data)
