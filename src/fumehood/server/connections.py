"""Bounds of a connection that uvicorn lacks: length of a head, time for a head, number of waiting connections.

Runs in the server process, below the app, on connections that are not authenticated yet. A connection whose head is too
long is answered 431, one whose head does not arrive in time is closed, and with too many waiting connections the one
that has waited longest is closed. It does nothing while a request is under way.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from fumehood.log import events
from fumehood.server.listener import has_left, is_over
from fumehood.server.pace import TURN_SECONDS, ConnectionPace, SharedPace

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
MAX_WAITING = 4096
# Requests on one connection behind the current one; most clients send none before they have their response.
MAX_PIPELINED = 64
# The key in the scope of a request whose value resets its connection.
BREAKING = "fumehood.break_off"
# Between two looks whether the client of waiting requests is still there.
_LOOK_SECONDS = 1.0
# How long a client may take to receive what was sent before its connection is reset.
_LAST_BYTES_SECONDS = 2.0
_LAST_BYTES_POLL_SECONDS = 0.01
_LINGER_ZERO = struct.pack("ii", 1, 0)
_MAX_FRAGMENTS = 16_384
_READ_BYTES = 16 * 1024
_MAX_PONG_BYTES = 1 << 20
# Parsed at once at first, and twice as much each time for as long as that is quick.
_LEAST_PARSED_BYTES = 1024
# The part of the loop's time that WebSockets may share which send more short messages than an ordinary client does.
_WEBSOCKETS_PART = 0.1
# The part of the loop's time for bodies of requests that come in smaller pieces than an ordinary client sends.
_PIECES_PART = 0.1
# A read with more pieces than one, and one for so many bytes, is of many pieces.
_BYTES_OF_PIECE = 512
# What each of them may use at once: some dozens of short messages, and little for all connections of a key together.
_CREDIT_SECONDS = 0.01
_FREE_SECONDS_OF_BYTE = 10e-9
# The least that a message costs whose route waits for something.
_MESSAGE_SECONDS = 50e-6
_GONE = 1006
# For how long the messages are still taken of a client that has sent more than it may, and has finished sending.
_LEFT_SECONDS = 5.0
# For how long the app may work on what a client sent before it left, and the time between two looks for that.
_LEFT_BEHIND_SECONDS = 30.0
_LEFT_LOOK_SECONDS = 5.0
_TOO_BIG = 1009
_UNREADABLE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def bounded_http(
    *, head_seconds: float = HEAD_SECONDS, max_waiting: int = MAX_WAITING
) -> type[HttpToolsProtocol]:
    """Returns a protocol for the connections of one server.

    Args:
        head_seconds: How many seconds a connection may take for the head of its first request, or for any head that it
            has begun to send.
        max_waiting: How many connections may be open with no request under way.
    """
    bounds = {"head_seconds": head_seconds, "max_waiting": max_waiting, "waiting": OrderedDict()}
    return type("BoundedHttp", (_BoundedHttp,), bounds)


async def break_off(scope: Scope, reason: str) -> None:
    """Ends a connection by a reset, in the middle of an answer that cannot be completed.

    Some clients take an ordinary end in the middle of a body for a timeout or for the complete body. Data sent before
    is delivered first, for at most two seconds.

    Args:
        scope: The scope of the request that is being answered.
        reason: The reason, for the log.

    Raises:
        RuntimeError: The request did not come over a connection of this server.
    """
    breaking = scope.get("extensions", {}).get(BREAKING)

    if breaking is None:
        raise RuntimeError(f"an answer broke off: {reason}")

    events.ANSWER_BROKEN_OFF.log(reason=reason)
    await breaking()


class _HeldFlow(FlowControl):
    """The flow control of a connection that is not read while it is held, whatever uvicorn does."""

    _is_held = False

    def resume_reading(self) -> None:
        if self._is_held:
            self.read_paused = False
        else:
            super().resume_reading()

    def hold(self) -> None:
        self._is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        self._is_held = False

        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()


class _PacedReading:
    """The pieces of bodies in what a connection has read at once, and what the connection pays for many small ones.

    Args:
        shared: What such connections share.
    """

    def __init__(self, shared: SharedPace) -> None:
        self._shared = shared
        self._pace: ConnectionPace | None = None
        self._pieces: list[bytes] = []
        self._count = 0
        self._began_at = 0.0

    def begin(self) -> None:
        """Begins to count the pieces of one more read."""
        self._count = 0

    def add(self, piece: bytes) -> None:
        """Adds a piece."""
        if not self._pieces and not self._count:
            self._began_at = time.thread_time()

        self._pieces.append(piece)

    def take(self) -> bytes:
        """Returns what was added, as one piece: each costs uvicorn and the app some work."""
        if not self._pieces:
            return b""

        self._count += len(self._pieces)
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return body

    def delay_seconds(self, size_bytes: int) -> float:
        """Returns for how long nothing more may be read, after so many bytes; 0 if they were not many pieces."""
        if self._count <= 1 + size_bytes // _BYTES_OF_PIECE:
            return 0.0

        self._pace = self._pace or ConnectionPace(self._shared, _CREDIT_SECONDS)
        self._pace.charge(max(0.0, time.thread_time() - self._began_at))
        return self._pace.delay_seconds()


class _BoundedHttp(HttpToolsProtocol):
    """An HTTP connection, counted as waiting between requests.

    The pieces of a body that are read at once are passed on as one. A body in many small pieces, as chunks of one byte
    are, costs much more than its bytes: it is read at a pace that leaves the server's loop to others.
    """

    _shared_pace: ClassVar[SharedPace] = SharedPace(_PIECES_PART)
    head_seconds: ClassVar[float]
    max_waiting: ClassVar[int]
    waiting: ClassVar[OrderedDict[_BoundedHttp, None]]
    _head_timer: asyncio.TimerHandle | None = None
    # Bytes received since the parser last made progress: heads, trailers, and chunk headers.
    _pending_bytes = 0
    _is_in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # All that is read at once is parsed at once, chunks of one byte too.
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self.flow: _HeldFlow = _HeldFlow(transport)
        self._reading = _PacedReading(self._shared_pace)
        # Requests without a complete response, the one under way first.
        self._cycles: list[RequestResponseCycle] = []
        self._wait()
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

        # uvicorn keeps only the last one.
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

        self._cycles.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_reset():
            # Requests that it sent before are dropped: no answer can reach it.
            self.transport.abort()
            return

        self._pending_bytes += len(data)
        self._reading.begin()
        super().data_received(data)
        self._pass_on()

        if self.transport.get_protocol() is not self:
            # A WebSocket now.
            self._stop_waiting()
            return

        delay = self._reading.delay_seconds(len(data))

        if delay and not self.transport.is_closing():
            self.flow.hold()
            self.loop.call_later(delay, self.flow.release)

        if self._pending_bytes > MAX_HEAD_BYTES:
            self._refuse()
        elif self._head_timer is None and self._is_idle() and not self.transport.is_closing():
            # More bytes of the same head do not restart the timer.
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()
        self.scope["extensions"] = {BREAKING: self._break_off}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer, which was not there when the request was admitted: it is dropped.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._pending_bytes = 0
        self._stop_waiting()

        super().on_headers_complete()

        # A request for a WebSocket has no cycle of its own.
        if self.cycle is not None and self.cycle.scope is self.scope:
            self._cycles.append(self.cycle)

        # Each request costs a hundred times its bytes, and all those of one read come at once.
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.close()
            self.pipeline.clear()
        elif len(self.pipeline) == 1:
            self.loop.call_later(_LOOK_SECONDS, self._look)

    def on_body(self, body: bytes) -> None:
        self._reading.add(body)

    def on_message_complete(self) -> None:
        self._pass_on()
        self._pending_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]

        if self._is_idle() and not self.transport.is_closing():
            self._wait()

    def _pass_on(self) -> None:
        if body := self._reading.take():
            self._pending_bytes = 0
            super().on_body(body)

    def _look(self) -> None:
        """Ends the connection if its client has left: uvicorn does not read from it while requests are queued."""
        if self.transport.is_closing() or not self.pipeline:
            return

        connection = self.transport.get_extra_info("socket")

        if connection is not None and connection.family != socket.AF_UNIX and has_left(connection):
            self.transport.abort()
        else:
            self.loop.call_later(_LOOK_SECONDS, self._look)

    def _is_reset(self) -> bool:
        connection = self.transport.get_extra_info("socket")
        return connection is not None and connection.family != socket.AF_UNIX and is_over(connection)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self.waiting[self] = None

        if len(self.waiting) > self.max_waiting:
            next(iter(self.waiting))._give_up()

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)

        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    async def _break_off(self) -> None:
        connection = self.transport.get_extra_info("socket")

        try:
            async with asyncio.timeout(_LAST_BYTES_SECONDS):
                while not self.transport.is_closing() and self._unsent_bytes(connection):
                    await asyncio.sleep(_LAST_BYTES_POLL_SECONDS)
        except TimeoutError:
            # The client does not read; unsent bytes are lost.
            pass

        if not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self.transport.abort()

        # The protocol is called when the transport is closed, in the next turn of the loop.
        await asyncio.sleep(0)

    def _unsent_bytes(self, connection: socket.socket) -> int:
        """Returns how many sent bytes the client has not acknowledged."""
        in_kernel = bytearray(4)
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, in_kernel)
        return self.transport.get_write_buffer_size() + int.from_bytes(in_kernel, "little")

    def _give_up(self) -> None:
        self._stop_waiting()
        self.transport.close()

    def _refuse(self) -> None:
        if self._is_idle() and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)

        # A response under way is reset, so that the client does not take it for complete.
        self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose messages have a bounded number of fragments, and whose pings end when pongs are not read.

    Received bytes are parsed for at most some milliseconds at a time, and many short messages are taken at a pace that
    leaves the server's loop to others, whatever the route does with them. A route that still works on messages of a
    client that has left is cancelled after some time: what it waits for, such as a server in a sandbox that does not
    read, may last as long as the sandbox.
    """

    _shared_pace: ClassVar[SharedPace] = SharedPace(_WEBSOCKETS_PART)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes over the connection; at most one piece of received bytes waits to be parsed, so pieces are small."""
        super().connection_made(transport)
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self.app = partial(self._answered, self.app)
        self._pace = ConnectionPace(self._shared_pace, _CREDIT_SECONDS)
        self._unparsed = b""
        self._is_held = False
        # What the app does with a message is charged unless it waits meanwhile.
        self._given_at = 0.0
        self._is_same_turn = False
        self._free_seconds = 0.0
        self._left_at: float | None = None
        self._running: asyncio.Task[None] | None = None
        self._was_cancelled = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Discards what was not parsed, and tells the app of an end without a close frame."""
        if self.handshake_complete and not self.close_sent and self.conn.close_rcvd is None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": _GONE})

        super().connection_lost(exc)
        self._unparsed = b""

    def data_received(self, data: bytes) -> None:
        """Takes received bytes; closes the connection after a handshake that could not be parsed."""
        self._unparsed += data

        if self._is_held:
            # The close of an app has uvicorn read on, which knows nothing of this.
            self.transport.pause_reading()
            return

        began, at, step = time.thread_time(), 0, _LEAST_PARSED_BYTES

        while at < len(self._unparsed):
            super().data_received(self._unparsed[at : at + step])
            at += step
            step *= 2

            if time.thread_time() - began > TURN_SECONDS:
                break

        self._charge(time.thread_time() - began, min(at, len(self._unparsed)))
        self._unparsed = b"" if self.transport.is_closing() else self._unparsed[at:]
        delay = self._pace.delay_seconds()

        if delay or self._unparsed:
            self._is_held = True
            self.transport.pause_reading()
            self.loop.call_later(delay, self._go_on)

        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.handshake_initiated = self.handshake_complete = self.close_sent = True
            self.transport.write(_UNREADABLE)
            self.transport.close()

    def _go_on(self) -> None:
        self._is_held = False

        if self._is_left_behind():
            self._unparsed = b""
            self.transport.abort()
        elif self._unparsed:
            self.data_received(b"")

        if not self._is_held and not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _is_left_behind(self) -> bool:
        """Returns whether a client has sent more than it may, and has gone: what the kernel holds of it is no use.

        What a client sent before it finished sending is taken for some seconds more, to which a flood adds nothing.
        """
        connection = self._connection()

        if not self._pace.is_used_up or self.transport.is_closing() or connection is None:
            return False

        if is_over(connection):
            return True

        if not has_left(connection):
            return False

        return self._seconds_since_it_left() > _LEFT_SECONDS

    def _seconds_since_it_left(self) -> float:
        now = self.loop.time()
        self._left_at = self._left_at or now
        return now - self._left_at

    def _look(self) -> None:
        """Cancels an app long after its client has left, whose end uvicorn does not see while it reads nothing."""
        if self._running is None:
            return

        connection = self._connection()
        is_over = self.transport.is_closing() or (connection is not None and has_left(connection))

        if is_over and self._seconds_since_it_left() >= _LEFT_BEHIND_SECONDS:
            self._was_cancelled = True
            self._running.cancel()
            self.transport.abort()
        else:
            self.loop.call_later(_LEFT_LOOK_SECONDS, self._look)

    def _connection(self) -> socket.socket | None:
        """The socket, if its state can be read."""
        connection: socket.socket | None = self.transport.get_extra_info("socket")
        return None if connection is None or connection.family == socket.AF_UNIX else connection

    async def send(self, message: ASGISendEvent) -> None:
        """Sends to a client that is still there: one that has left would answer by a reset, and its messages be lost.

        Raises:
            ClientDisconnected: The client has left.
        """
        if message["type"] == "websocket.send" and self.handshake_complete:
            connection = self._connection()

            if connection is not None and not self.transport.is_closing() and has_left(connection):
                raise ClientDisconnected

        await super().send(message)

    def _charge(self, seconds: float, size_bytes: int) -> None:
        """Charges processor time, but for what messages of ordinary length cost for their bytes."""
        self._pace.charge(max(0.0, seconds - size_bytes * _FREE_SECONDS_OF_BYTE))

    async def receive(self) -> ASGIReceiveEvent:
        """Returns the next message, at the pace of the connection."""
        if self._given_at:
            used = time.thread_time() - self._given_at
            self._pace.charge(max(0.0, used - self._free_seconds) if self._is_same_turn else _MESSAGE_SECONDS)
            self._given_at = 0.0
            await self._pace.wait()

            if self._is_left_behind():
                self.transport.abort()
                return {"type": "websocket.disconnect", "code": _GONE}

        message = await self.queue.get()

        if self.read_paused and self.queue.empty():
            self.read_paused = False

            if not self._is_held:
                self.transport.resume_reading()

        if message["type"] == "websocket.receive":
            size = len(message.get("bytes") or message.get("text") or "")
            self._free_seconds = size * _FREE_SECONDS_OF_BYTE
            self._is_same_turn = True
            self.loop.call_soon(self._end_turn)
            self._given_at = time.thread_time()

        return message

    def _end_turn(self) -> None:
        self._is_same_turn = False

    async def _answered(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the app, without the error that uvicorn would log for a refused handshake or a client that has left."""
        self._running = asyncio.current_task()
        self.loop.call_later(_LEFT_LOOK_SECONDS, self._look)

        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._was_cancelled:
                raise
        finally:
            self._running = None

        if self.transport.is_closing():
            self.handshake_complete = True

    def handle_cont(self, event: Frame) -> None:
        """Takes one more fragment; empty fragments count as well."""
        if len(self.frames) < _MAX_FRAGMENTS:
            super().handle_cont(event)
            return

        self.frames = []
        self.conn.fail(_TOO_BIG, "too many fragments")
        self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answers a ping, as long as the client reads the answers."""
        super().handle_ping()

        if self.transport.get_write_buffer_size() > _MAX_PONG_BYTES:
            self.transport.abort()
