"""Connections that never become requests, or that become too much: row W08, before anybody has said who they are."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from fumehood.server import connections
from fumehood.server.connections import BoundedWebSocket, bounded_http

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
# More than the buffers of the kernel hold at both ends, which a closed connection may have taken.
_ENOUGH = 32 << 20


def dial(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


def taken_of(raw: socket.socket, beginning: bytes, endless: bytes) -> tuple[int, bytes]:
    """How much of something endless a server takes, up to `_ENOUGH`, and what it says to it."""
    raw.sendall(beginning)
    sent = 0

    try:
        while sent < _ENOUGH:
            sent += raw.send(endless)
    except OSError:
        pass

    try:
        return sent, raw.recv(4096)
    except OSError:
        # What it said was lost with the connection, which it closed while we were sending.
        return sent, b""


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (HEAD + b"X-Long: ", b"x" * 65_536),
        (HEAD, b"X-One: of many\r\n" * 4096),
        (b"GET /", b"a" * 65_536),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: 1\r\n" * 4096),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 65_536),
    ],
    ids=["value", "lines", "path", "trailers", "extension"],
)
def test_w08_heads_end(server: Any, beginning: bytes, endless: bytes) -> None:
    """No part of a request that is no body may be endless."""
    with dial(server) as raw:
        sent, _ = taken_of(raw, beginning, endless)
        assert sent < _ENOUGH


def test_w08_an_ordinary_head_passes(server: Any) -> None:
    """Control: a head of 60 KB, in pieces, and one more request on the same connection."""
    with dial(server) as raw:
        for _ in range(2):
            raw.sendall(HEAD)
            raw.sendall(b"X-Long: " + b"x" * 60_000)
            raw.sendall(b"\r\n\r\n")
            data = b""

            while not data.endswith(b"}"):
                data += raw.recv(65_536)

            assert data.startswith(b"HTTP/1.1 200")

    with dial(server) as raw:
        raw.sendall(HEAD + b"X-Long: " + b"x" * 66_000)
        assert raw.recv(65_536).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length : 5\r\n",
        b"X-A: b\rX-B: c\r\n",
        b"X-A: \0\r\n",
    ],
)
def test_w08_what_two_parsers_could_read_in_two_ways_is_refused(server: Any, lines: bytes) -> None:
    """Request smuggling begins with a head that a proxy before us understands differently."""
    with dial(server) as raw:
        raw.sendall(b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n0\r\n\r\n")
        assert raw.recv(4096).split()[1] == b"400"


@pytest.mark.parametrize(
    "line", [b"GET http://evil.test HTTP/1.1", b"CONNECT evil.test:80 HTTP/1.1", b"OPTIONS * HTTP/1.1"]
)
def test_w08_targets_of_other_forms_are_no_faults(server: Any, line: bytes) -> None:
    with dial(server) as raw:
        raw.sendall(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert raw.recv(4096).split()[1] in (b"400", b"401", b"404", b"405")


_ASKED: list[str] = []
_ENDED: list[str] = []
_BODIES: list[int] = []
_BEGUN: list[tuple[float, float]] = []


async def _app(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Answers 200 to every request, and takes every WebSocket."""
    _ASKED.append(scope["path"])

    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})

        if scope["path"] == "/stuck":
            try:
                # As of a route that passes the first message on to a program that does not read.
                await receive()
                await asyncio.Event().wait()
            finally:
                _ENDED.append(scope["query_string"].decode())

        while (await receive())["type"] != "websocket.disconnect":
            continue

        return

    if scope["method"] == "POST":
        _BEGUN.append((time.monotonic(), time.thread_time()))
        body, message = 0, await receive()

        while message.get("more_body"):
            body, message = body + len(message["body"]), await receive()

        _BODIES.append(body + len(message["body"]))

    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(**bounds: Any) -> Any:
    """The connections of a server with bounds of its own."""
    config = uvicorn.Config(
        _app, port=0, http=bounded_http(**bounds), ws=BoundedWebSocket, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HT", HEAD, HEAD + b"Content-Length: 9\r\n\r\n123"],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
def test_w08_who_does_not_go_on_is_let_go(said: bytes) -> None:
    """Neither silence nor a word now and then holds a connection."""

    async def wait() -> bytes:
        async with serving(head_seconds=0.2) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            data = b""

            if b"\r\n\r\n" in said:
                # It is answered, and goes on with its body.
                data = await reader.readuntil(b"\r\n\r\n")
                writer.write(b"4")

            data += await asyncio.wait_for(reader.read(), 20)
            writer.close()
            return data

    data = asyncio.run(wait())
    # Of a request whose head has come the answer was given before.
    assert data.startswith(b"HTTP/1.1 200") is (b"\r\n\r\n" in said)


def test_w08_thousands_that_wait_keep_nobody_out() -> None:
    """The one that has waited longest makes room."""

    async def flood() -> int:
        async with serving(max_waiting=50) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
            ended = 0

            for reader, _ in held[:250]:
                ended += await asyncio.wait_for(reader.read(), 20) == b""

            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"\r\n")
            assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")

            for _, each in [*held, (reader, writer)]:
                each.close()

            return ended

    assert asyncio.run(flood()) == 250


def test_w08_a_request_of_a_client_that_has_gone_is_not_read() -> None:
    """The requests of two that end at once: one by a reset, and one, the control, that still receives."""

    async def send() -> bytes:
        async with serving() as port:
            # All of it before the server's next turn.
            gone = socket.create_connection(("127.0.0.1", port), 30)
            gone.sendall(b"GET /gone HTTP/1.1\r\nHost: localhost\r\n\r\n")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
            half = socket.create_connection(("127.0.0.1", port), 30)
            half.sendall(b"GET /half HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            half.shutdown(socket.SHUT_WR)
            reader, writer = await asyncio.open_connection(sock=half)
            data = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            return data

    _ASKED.clear()
    assert asyncio.run(send()).startswith(b"HTTP/1.1 200")
    assert _ASKED == ["/half"]


@pytest.mark.parametrize(("count", "answered"), [(1, 1), (60, 60), (5000, 0)])
def test_w08_requests_behind_one_another_are_few(count: int, answered: int) -> None:
    """What is sent before the first answer waits as a request each, which costs a hundred times its bytes."""

    async def send() -> int:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((HEAD + b"\r\n") * count)
            answers = 0

            try:
                while answers < count and (line := await asyncio.wait_for(reader.readline(), 20)):
                    answers += line.startswith(b"HTTP/1.1 200")
            except OSError:
                pass

            writer.close()
            return answers

    assert asyncio.run(send()) == answered


# Sends each body over a connection of its own, all at once, and ends when all are answered.
_UPLOADING = """
import socket, sys, threading

def send(body):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
        head = b"POST / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
        line.sendall(head + body + b"0\\r\\n\\r\\n")
        while line.recv(4096):
            pass

size, count = int(sys.argv[2]), int(sys.argv[3])
body = b"%x\\r\\n%s\\r\\n" % (size, b"x" * size) * count
senders = [threading.Thread(target=send, args=(body,)) for _ in range(3)]
for sender in senders:
    sender.start()
for sender in senders:
    sender.join()
"""


@pytest.mark.parametrize(("size", "count"), [(1, 600_000), (2048, 2000)], ids=["tiny", "ordinary"])
def test_w08_a_body_in_tiny_pieces_leaves_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    """Chunks of one byte are read at a pace, whatever they cost; an ordinary body, the control, is never held."""
    held: list[connections._HeldFlow] = []
    hold = connections._HeldFlow.hold

    def count_hold(flow: connections._HeldFlow) -> None:
        held.append(flow)
        hold(flow)

    monkeypatch.setattr(connections._HeldFlow, "hold", count_hold)
    _BODIES.clear()
    _BEGUN.clear()

    async def send() -> tuple[float, float]:
        async with serving() as port:
            arguments = [sys.executable, "-c", _UPLOADING, str(port), str(size), str(count)]
            uploading = await asyncio.create_subprocess_exec(*arguments)
            assert await asyncio.wait_for(uploading.wait(), 100) == 0
            began, began_loop = _BEGUN[0]
            return time.monotonic() - began, time.thread_time() - began_loop

    seconds, loop_seconds = asyncio.run(send())
    # Nothing is lost.
    assert [size * count] * 3 == _BODIES

    if size == 1:
        # A tenth of the time, what each connection may use at once, and the rest of what a loop does.
        assert loop_seconds < 0.06 + 0.2 * seconds
    else:
        assert not held


async def _upgraded(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket of a client that answers nothing by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


def test_w08_a_message_has_an_end() -> None:
    """Fragments without content cost a client nothing; their number is bounded."""

    async def send() -> int | None:
        async with serving() as port, connect(f"ws://127.0.0.1:{port}/") as socket:
            empty = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)
            socket.transport.write(
                Frame(Opcode.BINARY, b"x", fin=False).serialize(mask=True) + empty * 100_000
            )

            try:
                await asyncio.wait_for(socket.recv(), 30)
            except ConnectionClosed as closed:
                return None if closed.rcvd is None else closed.rcvd.code

            return 0

    assert asyncio.run(send()) == 1009


def test_w08_what_a_client_sent_before_it_left_holds_no_route(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A route that waits for something else than its client ends after it, however the client left; not before."""
    monkeypatch.setattr(connections, "_LEFT_BEHIND_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_LEFT_LOOK_SECONDS", 0.05)
    _ENDED.clear()
    message = Frame(Opcode.BINARY, b"x").serialize(mask=True)
    close = Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)

    async def leave() -> list[str]:
        async with serving() as port:
            begun = [await _upgraded(port, f"/stuck?{name}") for name in ("stays", "end", "close", "reset")]

            for (_, writer), sent in zip(
                begun, (message, message * 3, message + close, message), strict=True
            ):
                writer.write(sent)

            raw = begun[-1][1].get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            for _, writer in begun[1:]:
                writer.close()

            async with asyncio.timeout(20):
                while len(_ENDED) < 3:
                    await asyncio.sleep(0.01)

            ended = sorted(_ENDED)
            begun[0][1].close()
            return ended

    assert asyncio.run(leave()) == ["close", "end", "reset"]
    # A client that leaves is no fault.
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_w08_pings_of_one_who_does_not_read_end() -> None:
    async def send() -> int:
        async with serving() as port:
            reader, writer = await _upgraded(port, "/")
            pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1000
            sent = 0

            try:
                # Nothing is read meanwhile, so that the answers wait at the server.
                reader._transport.pause_reading()  # type: ignore[attr-defined]

                while sent < 256 << 20:
                    writer.write(pings)
                    sent += len(pings)
                    await asyncio.wait_for(writer.drain(), 30)
            except OSError:
                pass

            writer.transport.abort()
            return sent

    assert asyncio.run(send()) < 256 << 20


@pytest.mark.parametrize(
    "lines",
    [b"X-Long: " + b"x" * 9000, b"\r\n".join(b"X-%d: 1" % number for number in range(300)), b"X-Odd: a\x01b"],
    ids=["long", "many", "odd"],
)
def test_w08_a_handshake_that_cannot_be_read_is_refused(lines: bytes) -> None:
    """A connection that no WebSocket comes of is closed with an answer: nothing else would ever end it."""
    head = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )

    async def ask(head: bytes) -> bytes:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"\r\n")
            line = await asyncio.wait_for(reader.readline(), 20)

            if b" 101 " not in line:
                await asyncio.wait_for(reader.read(), 20)

            writer.close()
            return line

    assert asyncio.run(ask(head + lines + b"\r\n")).split()[1] in (b"400", b"431")
    # Control.
    assert asyncio.run(ask(head + b"X-Long: " + b"x" * 4000 + b"\r\n")).startswith(b"HTTP/1.1 101")
