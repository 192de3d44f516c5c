"""The least that an HTTP client can be: connections that stay open, requests built beforehand, a parser in C.

Runs in the measuring process, on the same few processors as the server that is measured, so every microsecond in here
would be taken from it. A real client costs more than the server does; its time is not what these figures are about.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httptools

_RECEIVED_BYTES = 1 << 16
_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens, and what opens it."""

    host: str
    port: int
    token: str

    def request(self, method: str, path: str, body: object = None, *, accept: str = "*/*") -> bytes:
        """Returns a whole request, ready to be sent any number of times."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\naccept: {accept}\r\n"
            f"authorization: Bearer {self.token}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes

    def json(self, status: int = 200) -> Any:
        """Returns the body as JSON; an answer of another status is a failure of the measurement."""
        assert self.status == status, f"{self.status}: {self.body[:2000]!r}"
        return json.loads(self.body)


class _Answers:
    """The answers of one connection, one after the other, as their bytes come in."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._body = bytearray()
        self._is_whole = False

    def feed(self, data: bytes) -> Answer | None:
        """Takes what came, and returns the answer if it is whole now."""
        if not data:
            raise ConnectionError("the server closed the connection in the middle of an answer")

        self._parser.feed_data(data)

        if not self._is_whole:
            return None

        answer = Answer(self._status, bytes(self._body))
        self._body.clear()
        self._is_whole = False
        return answer

    def taken(self) -> bytes:
        """Takes out what has come of the body so far."""
        data = bytes(self._body)
        self._body.clear()
        return data

    # -- called by the parser

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._is_whole = True


class Connection:
    """A connection of one client, who waits for each answer."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.create_connection((place.host, place.port), timeout=_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = _Answers()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> Answer:
        """Sends a request and returns its answer."""
        self._socket.sendall(request)

        while (answer := self._answers.feed(self._socket.recv(_RECEIVED_BYTES))) is None:
            continue

        return answer

    def pieces(self, request: bytes) -> Iterator[bytes]:
        """Sends a request and gives the body of its answer as it comes."""
        self._socket.sendall(request)
        answer: Answer | None = None

        while answer is None:
            answer = self._answers.feed(self._socket.recv(_RECEIVED_BYTES))
            yield self._answers.taken() if answer is None else answer.body

        assert answer.status == 200, f"{answer.status}: {answer.body[:2000]!r}"


class AsyncConnection(asyncio.Protocol):
    """A connection of one of many clients of a loop; one request at a time."""

    def __init__(self) -> None:
        self._answers = _Answers()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, place: Place) -> AsyncConnection:
        """Connects."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, place.host, place.port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """Sends a request and returns its answer."""
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        """Closes it."""
        assert self._transport is not None
        self._transport.close()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answers.feed(data)

        if answer is not None and self._waiting is not None:
            self._waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or ConnectionError("the server closed the connection"))
