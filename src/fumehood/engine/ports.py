"""Connections to servers inside one sandbox: made by its init, read and written here.

The host makes a socket pair and gives one end to init, which connects to the guest's loopback and copies the bytes
between the two. So the host holds no descriptor that a guest could have manipulated: its end never blocks, and receives
only bytes. Whatever the guest does on the other end, at most one chunk is buffered here. `PortForward` makes a port of
a sandbox reachable at a port of this machine's loopback.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.cancellation import cancel_and_wait
from fumehood.engine.channel import open_pair
from fumehood.engine.init_client import InitError
from fumehood.errors import FumehoodError, OverloadedError, PortClosedError, SandboxError, ServiceError
from fumehood.port.backend import ByteStream
from fumehood.values.checks import check_integer
from fumehood_wire.init_messages import CONNECTED, MAX_STREAMS

_READ_BYTES = 1 << 16
_CONNECT_SECONDS = 5.0

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class LivePorts:
    """All connections to the ports of a sandbox.

    Args:
        sandbox_id: The sandbox's id.
        ask: Sends requests to init.
        touch: Called whenever bytes are transferred.
        check_alive: Raises if the sandbox has ended; called at the end of a stream, to distinguish a closed connection
            from the end of the sandbox.
    """

    def __init__(
        self, sandbox_id: str, ask: Ask, touch: Callable[[], None], check_alive: Callable[[], None]
    ) -> None:
        self._sandbox_id = sandbox_id
        self._ask = ask
        self._touch = touch
        self._check_alive = check_alive
        self._streams: set[PortStream] = set()
        self._forwards: dict[int, PortForward] = {}

    async def forward(self, port: int) -> str:
        """Makes a port of the guest's loopback reachable on the host's, and returns its address: host and port."""
        check_integer("port", port, low=1, high=65_535)

        # The end of the sandbox closes registered forwards; a later one would stay open.
        self._check_alive()

        if port not in self._forwards:
            self._forwards[port] = PortForward(lambda: self.open(port))

        address = await self._forwards[port].listen()
        # The sandbox may have ended meanwhile, and the forward with it.
        self._check_alive()
        return address

    def rename(self, sandbox_id: str) -> None:
        """Changes the sandbox's id."""
        self._sandbox_id = sandbox_id

    async def open(self, port: int) -> ByteStream:
        """Connects to a port of the guest's loopback, and returns the stream.

        Raises:
            PortClosedError: Nothing in the sandbox listens on this port.
            OverloadedError: The sandbox has as many open streams as it may.
        """
        check_integer("port", port, low=1, high=65_535)

        if len(self._streams) >= MAX_STREAMS:
            raise self._full()

        near, far = open_pair()
        stream = PortStream(near, self._touch, self._check_alive, self._streams.discard)
        self._streams.add(stream)
        try:
            await self._connect(stream, far, port)
        except BaseException:
            await stream.close()
            raise

        return stream

    def close(self, make_closed_error: Callable[[], FumehoodError]) -> None:
        """Ends all streams after the end of the sandbox: readers and writers get its error."""
        for stream in list(self._streams):
            stream.note_ended(make_closed_error)

        for forward in self._forwards.values():
            forward.close()

    async def _connect(self, stream: PortStream, far: socket.socket, port: int) -> None:
        try:
            await self._ask("connect", fds=(far.fileno(),), port=port)
        except InitError as error:
            if error.errno_value == errno.EMFILE:
                raise self._full() from None

            raise PortClosedError(sandbox_id=self._sandbox_id, port=port) from None
        finally:
            far.close()

        try:
            # `wait_for` of Python 3.11 loses a cancellation that arrives together with the result.
            async with asyncio.timeout(_CONNECT_SECONDS):
                said = await stream.receive(len(CONNECTED))
        except TimeoutError:
            said = b""

        if said != CONNECTED:
            self._check_alive()
            raise PortClosedError(sandbox_id=self._sandbox_id, port=port)

    def _full(self) -> OverloadedError:
        reason = f"sandbox {self._sandbox_id!r} has {len(self._streams)} connections open"
        return OverloadedError(reason=reason, retry_after_seconds=1)


class PortStream(ByteStream):
    """One connection.

    Args:
        sock: The host's end, not blocking, owned from now on.
        touch: Called whenever bytes are transferred.
        check_alive: Raises when the sandbox has ended.
        on_close: Called with the stream once it is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        touch: Callable[[], None],
        check_alive: Callable[[], None],
        on_close: Callable[[PortStream], None],
    ) -> None:
        self._sock = sock
        self._touch = touch
        self._check_alive = check_alive
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._make_closed_error: Callable[[], FumehoodError] | None = None
        self._has_ended_output = False
        self._closed = False
        # The last user closes the descriptor: its number must not be reused before.
        self._users = 0

    async def read(self) -> bytes:
        """Return received bytes, and count them as use of the sandbox; b"" at the end."""
        data = await self.receive(_READ_BYTES)

        if data:
            self._touch()
        elif not self._closed:
            self._check_ended()

        return data

    async def receive(self, max_bytes: int) -> bytes:
        """Returns at most `max_bytes` of the received bytes."""
        if self._closed:
            return b""

        self._users += 1
        try:
            return await self._loop.sock_recv(self._sock, max_bytes)
        except ConnectionError:
            return b""
        finally:
            self._leave()

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while init does not read them; counts as use of the sandbox."""
        if self._closed or self._has_ended_output:
            self._check_ended()
            raise BrokenPipeError(errno.EPIPE, "this stream takes no more")

        self._users += 1
        try:
            await self._loop.sock_sendall(self._sock, data)
        except ConnectionError:
            self._check_ended()
            raise BrokenPipeError(errno.EPIPE, "the other side takes no more") from None
        finally:
            self._leave()

        self._touch()

    async def end(self) -> None:
        """End the sending direction; a second call does nothing."""
        if self._closed or self._has_ended_output:
            return

        self._has_ended_output = True
        self._shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close the socket as soon as no read or write is pending; a second call does nothing."""
        if self._closed:
            return

        self._closed = True
        self._on_close(self)
        # Wakes pending reads and writes.
        self._shutdown(socket.SHUT_RDWR)
        self._release()

    def note_ended(self, make_closed_error: Callable[[], FumehoodError]) -> None:
        """Records the end of the sandbox; bytes sent before can still be read."""
        self._make_closed_error = make_closed_error
        self._shutdown(socket.SHUT_WR)

    def _check_ended(self) -> None:
        if self._make_closed_error is not None:
            raise self._make_closed_error()

        self._check_alive()

    def _shutdown(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:
            return  # the peer has closed it already

    def _leave(self) -> None:
        self._users -= 1
        self._release()

    def _release(self) -> None:
        if self._closed and not self._users:
            self._sock.close()


_LOOPBACK = "127.0.0.1"
_FORWARD_READ_BYTES = 1 << 16


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
        """Begins to listen at the first call; every call returns the address: host and port."""
        if self._server is None:
            sock = socket.create_server((_LOOPBACK, 0))
            host, port = sock.getsockname()
            self._address = f"{host}:{port}"
            # Without an await in between: after a cancellation, `close` knows the server.
            self._server = await asyncio.start_server(self._accept, sock=sock, start_serving=False)
            await self._server.start_serving()

        return self._address

    def close(self) -> None:
        """Closes the server and its connections."""
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
                    await cancel_and_wait(inward)
        except (SandboxError, ServiceError, ConnectionError):
            # Nothing listens there, or either side has closed: the client's connection is closed.
            return
        finally:
            writer.close()


async def _outward(stream: ByteStream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()


async def _inward(reader: asyncio.StreamReader, stream: ByteStream) -> None:
    try:
        while data := await reader.read(_FORWARD_READ_BYTES):
            await stream.write(data)

        await stream.end()
    except (SandboxError, ConnectionError):
        # The outgoing direction reports the end.
        return
