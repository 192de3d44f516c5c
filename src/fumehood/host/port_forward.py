"""A port of a sandbox, reached at a port of this machine's own loopback.

Runs in the host process, on the engine's loop. Whoever can connect to the loopback, every user of this machine, can
reach what the guest serves; nothing of the host is reached by the guest that way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from fumehood.backends.streams import ByteStream
from fumehood.errors import SandboxError
from fumehood.service_errors import ServiceError

_LOOPBACK = "127.0.0.1"
_READ_BYTES = 1 << 16


class PortForward:
    """One forwarded port.

    Args:
        open_stream: Connects to the port of the sandbox.
    """

    def __init__(self, open_stream: Callable[[], Awaitable[ByteStream]]) -> None:
        self._open_stream = open_stream
        self._server: asyncio.Server | None = None
        self._address = ""
        self._carriers: set[asyncio.Task[None]] = set()

    async def listen(self) -> str:
        """Begins to listen, at the first call, and returns the address: host and port."""
        if self._server is None:
            sock = socket.create_server((_LOOPBACK, 0))
            host, port = sock.getsockname()
            self._address = f"{host}:{port}"
            # Without a wait: whoever gives up leaves a server that `close` knows.
            self._server = await asyncio.start_server(self._accept, sock=sock, start_serving=False)
            await self._server.start_serving()

        return self._address

    def close(self) -> None:
        """Listens no more, and ends what it carries."""
        if self._server is not None:
            self._server.close()

        for carrier in self._carriers:
            carrier.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrier = asyncio.create_task(self._carry(reader, writer))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._open_stream() as stream:
                inward = asyncio.create_task(_inward(reader, stream))
                try:
                    await _outward(stream, writer)
                finally:
                    inward.cancel()
                    await asyncio.gather(inward, return_exceptions=True)
        except (SandboxError, ServiceError, ConnectionError):
            # Nothing listens there, or either side has gone: the client sees its connection end.
            return
        finally:
            writer.close()


async def _outward(stream: ByteStream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()


async def _inward(reader: asyncio.StreamReader, stream: ByteStream) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            await stream.write(data)

        await stream.end()
    except (SandboxError, ConnectionError):
        # What comes out says how it ends.
        return
