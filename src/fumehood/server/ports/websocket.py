"""Carries one WebSocket connection between a client and a server inside a sandbox.

Runs in the server process, over a byte stream of the port. Both sides are parsed by the websockets library, with bounds
on every message; bytes are never passed through unparsed. A guest may send many tiny messages: they are read at a pace
that never blocks the server's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidURI, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from fumehood.cancellation import first_of
from fumehood.errors import BadGatewayError, InvalidArgumentError, SandboxError
from fumehood.port.backend import ByteStream
from fumehood.server.pace import ConnectionPace, SharedPace

_MAX_MESSAGE_BYTES = 16 << 20
# What is parsed at once: at most some 340 frames, which take about 4 ms.
_SLICE_BYTES = 1024
# Processor time of what is not measured, since it may wait meanwhile: to take a slice and come back to the loop, to
# pass a message on to the client, and each byte of it.
_SLICE_SECONDS = 0.00001
_SEND_SECONDS = 0.00004
_BYTE_SECONDS = 1e-9
# Part of the loop's time for the messages of all connections that send more than now and then.
_PACE = SharedPace(0.2)
# A disconnected client is noticed only after the handshake.
_HANDSHAKE_SECONDS = 30.0
_NORMAL = 1000
_GOING_AWAY = 1001
_BROKEN = 1006
# For how long what a client sent before it left is still delivered, and the server inside may take for its own end.
_LAST_SECONDS = 10.0
# Codes that mean the lack of one and are never sent (RFC 6455, 7.4.1).
_UNSPOKEN = (1005, 1006, 1015)
# The library sets these for the inner connection; those of the client were for the outer one.
_HANDSHAKE = ("sec-websocket-", "host", "origin", "upgrade", "connection", "content-length")


async def carry_websocket(
    stream: ByteStream,
    port: int,
    path: str,
    headers: Iterable[tuple[str, str]],
    websocket: WebSocket,
) -> None:
    """Performs the handshake with both sides and carries messages until one of them ends.

    All that a client has sent before its close frame is delivered, and then the close. A connection of a client that
    broke off ends inside without a close frame.

    Args:
        stream: The connection into the sandbox.
        port: The port to which the stream leads.
        path: Path and query for the server inside.
        headers: Headers for the server inside.
        websocket: The client's side, not accepted yet.

    Raises:
        BadGatewayError: The server inside refused, or does not speak WebSocket.
    """
    inner = _Inner(stream, port, path, list(websocket.scope.get("subprotocols", ())))

    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await inner.shake_hands(headers)
    except TimeoutError:
        raise BadGatewayError(port=port, reason=f"no handshake within {_HANDSHAKE_SECONDS:g} s") from None

    await websocket.accept(subprotocol=inner.subprotocol)
    outward = asyncio.create_task(_outward(inner, websocket))
    inward = asyncio.create_task(_inward(inner, websocket))
    await first_of(outward, inward)


class _Inner:
    """The connection to the server inside."""

    def __init__(self, stream: ByteStream, port: int, path: str, subprotocols: list[str]) -> None:
        self._stream = stream
        self._port = port
        try:
            uri = parse_uri(f"ws://localhost:{port}{path}")
        except (InvalidURI, ValueError):
            raise InvalidArgumentError(field="path", value=path, allowed="a path of a WebSocket") from None

        self._protocol = ClientProtocol(
            uri,
            subprotocols=subprotocols or None,  # type: ignore[arg-type]
            max_size=_MAX_MESSAGE_BYTES,
        )
        self.pace = ConnectionPace(_PACE)
        self._unparsed = memoryview(b"")
        self._message = bytearray()
        self._early: list[Frame] = []
        self._has_ended = asyncio.Event()
        self._is_text = False

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that the server inside has chosen."""
        return self._protocol.subprotocol

    async def shake_hands(self, headers: Iterable[tuple[str, str]]) -> None:
        """Requests the upgrade to a WebSocket, and returns when the server inside has accepted it.

        Raises:
            BadGatewayError: The server inside refuses it, or does not speak the protocol.
        """
        request = self._protocol.connect()

        for name, value in headers:
            if not name.lower().startswith(_HANDSHAKE):
                request.headers[name] = value

        self._protocol.send_request(request)
        await self._flush()

        while self._protocol.state is State.CONNECTING:
            if self._protocol.handshake_exc is not None or not await self._receive():
                break

            events = self._protocol.events_received()
            # The first messages of the server inside may come with its handshake.
            self._early = [event for event in events if isinstance(event, Frame)]

            if any(isinstance(event, Response) for event in events):
                break

        if self._protocol.state is not State.OPEN:
            error = self._protocol.handshake_exc
            reason = str(error) if isinstance(error, InvalidHandshake | ProtocolError) else "no handshake"
            raise BadGatewayError(port=self._port, reason=reason)

    async def messages(self, frames: list[Frame]) -> list[str | bytes]:
        """Returns the complete messages among received frames, and keeps the part of an incomplete one."""
        whole: list[str | bytes] = []

        for frame in frames:
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
                self._is_text = frame.opcode is Opcode.TEXT
                self._message.clear()

            if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                continue

            # Not a list: a guest may send any number of fragments, also empty ones.
            self._message += frame.data

            if frame.fin:
                data = bytes(self._message)
                self._message.clear()
                whole.append(data.decode("utf-8", "replace") if self._is_text else data)

        return whole

    async def receive(self) -> list[str | bytes] | None:
        """Waits for messages; returns None when the connection has ended."""
        while True:
            frames, self._early = self._early, []
            frames += [event for event in self._protocol.events_received() if isinstance(event, Frame)]

            if whole := await self.messages(frames):
                return whole

            if self._protocol.state in (State.CONNECTING, State.CLOSED) or not await self._receive():
                self._has_ended.set()
                return None

    async def send(self, message: str | bytes) -> None:
        """Sends one message."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)

        await self._flush()

    async def end(self, code: int) -> None:
        """Sends a close frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_NORMAL if code in _UNSPOKEN else code)
            await self._flush()

    async def ended(self) -> None:
        """Waits until the server inside has ended the connection as well, as long as `receive` is called."""
        await self._has_ended.wait()

    def closing_code(self) -> int:
        """The close code of the server inside, to be passed on."""
        said = self._protocol.close_rcvd
        return _GOING_AWAY if said is None or said.code in _UNSPOKEN else said.code

    async def _receive(self) -> bool:
        """Parses some of what has arrived, or waits for more; returns False at the end."""
        await self.pace.wait()
        has_more = True

        if not self._unparsed:
            self._unparsed = memoryview(await self._stream.read())
            has_more = bool(self._unparsed)

        piece, self._unparsed = self._unparsed[:_SLICE_BYTES], self._unparsed[_SLICE_BYTES:]

        self.pace.charge(_SLICE_SECONDS)

        with self.pace.charged():
            if has_more:
                self._protocol.receive_data(bytes(piece))
            else:
                self._protocol.receive_eof()

        await self._flush()
        return has_more

    async def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())

        if data:
            await self._stream.write(data)


async def _outward(inner: _Inner, websocket: WebSocket) -> None:
    try:
        await _carry_outward(inner, websocket)
        await websocket.close(inner.closing_code())
    except SandboxError:
        with suppress(WebSocketDisconnect):
            await websocket.close(_GOING_AWAY)
    except WebSocketDisconnect:
        # What the client had sent is still being delivered: a server that cannot send may not read either.
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                while await inner.receive() is not None:
                    pass


async def _carry_outward(inner: _Inner, websocket: WebSocket) -> None:
    while (messages := await inner.receive()) is not None:
        for message in messages:
            if isinstance(message, str):
                await websocket.send_text(message)
            else:
                await websocket.send_bytes(message)

            inner.pace.charge(_SEND_SECONDS + len(message) * _BYTE_SECONDS)
            await inner.pace.wait()


async def _inward(inner: _Inner, websocket: WebSocket) -> None:
    try:
        while (event := await websocket.receive())["type"] == "websocket.receive":
            text = event.get("text")
            await inner.send(text if text is not None else event["bytes"])

        if event.get("code") == _BROKEN:
            return

        async with asyncio.timeout(_LAST_SECONDS):
            await inner.end(event.get("code", _NORMAL))
            await inner.ended()
    except (BrokenPipeError, SandboxError, TimeoutError, WebSocketDisconnect):
        return
