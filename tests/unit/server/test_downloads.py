"""Answers that come in pieces: whole for a client who stays, and over with one who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from fumehood.server.connections import BREAKING
from fumehood.server.downloads import Download


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class _Client:
    """Takes what is sent; once it has gone, sending is silent, as with a real server."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.gone = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if not self.gone.is_set():
            self.messages.append(message)

    async def take(self, download: Download) -> None:
        await download({"type": "http"}, self.receive, self.send)


@on_loop
async def test_all_pieces_come_in_order() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"second"
        yield b"third"

    client = _Client()
    await client.take(Download(b"first", pieces(), {"X-Name": "value"}, 206))
    assert client.body == b"firstsecondthird"
    assert client.messages[0]["status"] == 206
    assert dict(client.messages[0]["headers"]) == {b"x-name": b"value"}
    assert client.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@on_loop
async def test_nothing_is_read_for_a_client_who_has_gone() -> None:
    client = _Client()
    given = 0
    is_closed = False

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal given, is_closed

        try:
            while given < 1000:
                # As reading does, it lets others have a turn.
                await asyncio.sleep(0)
                given += 1
                yield b"x"

                if given == 10:
                    client.gone.set()
        finally:
            is_closed = True

    await client.take(Download(b"", pieces(), {}))
    assert given < 20
    assert is_closed


@on_loop
async def test_an_error_breaks_the_answer_off() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"second"
        raise ConnectionResetError

    client = _Client()

    with pytest.raises(ConnectionResetError):
        await client.take(Download(b"first", pieces(), {}))

    assert client.body == b"firstsecond"
    assert client.messages[-1]["more_body"] is True


@on_loop
async def test_a_client_who_does_not_read_is_broken_off_when_the_answer_is_over() -> None:
    """It is not waited for, and the file is closed; an answer that was sent by then is whole."""
    broken, never = asyncio.Event(), asyncio.Event()
    is_closed = False

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal is_closed

        try:
            yield b"second"
        finally:
            is_closed = True

    async def send(message: Any) -> None:
        if message.get("body") == b"second":
            await never.wait()

    async def reset() -> None:
        broken.set()

    async def over() -> str:
        return "too slow"

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {}

    scope = {"type": "http", "extensions": {BREAKING: reset}}
    await Download(b"first", pieces(), {}, until_over=over)(scope, receive, send)
    assert broken.is_set()
    assert is_closed

    client = _Client()
    await client.take(Download(b"first", pieces(), {}, until_over=asyncio.Event().wait))  # type: ignore[arg-type]
    assert client.body == b"firstsecond"
