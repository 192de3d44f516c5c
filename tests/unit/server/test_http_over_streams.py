"""HTTP out of a sandbox: what the server understands, what ends the connection, and what a program receives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fumehood.port.backend import ByteStream
from fumehood.server.connections import break_off
from fumehood.server.http_over_streams import MAX_BODY_BYTES, MAX_HEAD_BYTES, Pace, StreamServer

ASKED = b"GET /a?b=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
POSTED = b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"


class Line(ByteStream):
    """The program's end: sends these pieces, then its end, unless it stays."""

    def __init__(self, *pieces: bytes, stays: bool = False) -> None:
        self._pieces = list(pieces)
        self._closed = asyncio.Event()
        self._stays = stays
        self.received = b""

    async def read(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)

        if self._stays:
            await self._closed.wait()

        return b""

    async def write(self, data: bytes) -> None:
        if self._closed.is_set():
            raise BrokenPipeError

        self.received += data

    async def end(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._closed.set()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked; by the path it has no body, breaks off, or waits for the end."""
    if scope["path"] == "/wait":
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        scope["state"]["left"].append(True)
        return

    body = (await receive())["body"].decode()
    status = 204 if scope["path"] == "/none" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"X-Of", b"app")]})

    if scope["path"] == "/broken":
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await break_off(scope, "a test")
        return

    shown = json.dumps([scope["method"], scope["path"], scope["query_string"].decode(), body]).encode()
    await send({"type": "http.response.body", "body": shown, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def served(*pieces: bytes, stays: bool = False, **state: Any) -> bytes:
    """Returns what the program receives until the connection ends."""

    async def serve() -> bytes:
        line = Line(*pieces, stays=stays)
        async with asyncio.timeout(30):
            await StreamServer(echo).serve(line, Pace(), state)

        return line.received

    return asyncio.run(serve())


def test_requests_are_answered_one_after_another() -> None:
    """In whatever pieces they come; the connection stays until it is ended."""
    sent = ASKED + POSTED
    whole = served(sent, stays=False)
    by_bytes = served(*(sent[at : at + 1] for at in range(len(sent))))
    assert whole.count(b"HTTP/1.1 200 OK\r\n") == by_bytes.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b'["GET", "/a", "b=1", ""]' in by_bytes
    assert by_bytes.endswith(b'["POST", "/a", "", "hello"]\r\n0\r\n\r\n')


def test_a_response_without_a_body_has_no_chunks() -> None:
    """A chunk behind it would be taken for the next response."""
    assert served(b"GET /none HTTP/1.1\r\n\r\n") == b"HTTP/1.1 204 No Content\r\nx-of: app\r\n\r\n"
    assert served(b"HEAD /a HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize("head", [b"GET /a HTTP/1.0\r\n", b"GET /a HTTP/1.1\r\nConnection: close\r\n"])
def test_a_connection_ends_where_the_request_is_reported(head: bytes) -> None:
    """And the response says it too."""
    received = served(head + b"\r\n", ASKED, stays=True)
    assert received.count(b"200 OK") == 1
    assert b"connection: close\r\n" in received


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x00\xff" * 4000 + b"\r\n\r\n", b"400"),
        (b"GET /a HTTP/1.1\nHost: x\n\r\n\r\n", b"400"),
        (b"GET http://other/a HTTP/1.1\r\n\r\n", b"400"),
        (b"GET * HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
        (b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 9, b"411"),
        (b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), b"413"),
        (b"GET /a HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6), b"431"),
    ],
)
def test_what_is_not_understood_ends_the_connection(sent: bytes, status: bytes) -> None:
    """It is refused, and nothing behind it is a request."""
    received = served(sent, ASKED, stays=True)
    assert received.startswith(b"HTTP/1.1 " + status)
    assert received.count(b"HTTP/1.1") == 1


def test_the_app_learns_that_the_program_has_left() -> None:
    """By its end, and by a flood of further requests that would have to be kept."""
    for rest in ([], [ASKED * 300]):
        left: list[bool] = []
        assert served(b"GET /wait HTTP/1.1\r\n\r\n", *rest, stays=bool(rest), left=left) == b""
        assert left == [True]


def test_a_response_that_is_broken_off_has_no_end() -> None:
    """The control is the last chunk of a whole one."""
    assert served(ASKED).endswith(b"0\r\n\r\n")
    assert served(b"GET /broken HTTP/1.1\r\n\r\n", stays=True).endswith(b"4\r\nhalf\r\n")


def test_the_body_is_asked_for_where_the_program_waits() -> None:
    """As curl does with long ones."""
    received = served(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"ab")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
