"""Answers that come line by line: in order, whole, and never more of them waiting than a bound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from fumehood.errors import InvalidArgumentError
from fumehood.server.drain import Drain
from fumehood.server.responses import NDJSON, stream_response


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class _Client:
    """One request and what is sent in answer to it."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.body = b""
        self.sends = 0
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.gone = asyncio.Event()
        services = SimpleNamespace(drain=self.drain)
        self.scope: dict[str, Any] = {
            "type": "http",
            "headers": [(b"accept", NDJSON.encode())],
            "app": SimpleNamespace(state=SimpleNamespace(services=services)),
        }

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.may_send.wait()
        self.body += message.get("body", b"")
        self.sends += 1

    async def follow(self, lines: AsyncGenerator[Any, None], max_waiting_bytes: int | None = None) -> None:
        response = await stream_response(Request(self.scope, self.receive), lines, max_waiting_bytes)
        await response(self.scope, self.receive, self.send)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


async def _numbers(count: int) -> AsyncGenerator[dict[str, int], None]:
    for number in range(count):
        yield {"number": number}


@on_loop
async def test_all_lines_come_in_order_and_those_that_are_there_in_one_piece() -> None:
    client = _Client()
    await client.follow(_numbers(1000))
    assert client.lines == [{"number": number} for number in range(1000)]
    # The head, the lines, the end.
    assert client.sends == 3


@on_loop
async def test_an_error_before_the_first_line_is_raised_and_a_later_one_is_the_last_line() -> None:
    error = InvalidArgumentError(field="code", value="x", allowed="y")

    async def failing(count: int) -> AsyncGenerator[dict[str, int], None]:
        async for line in _numbers(count):
            yield line

        raise error

    with pytest.raises(InvalidArgumentError):
        await _Client().follow(failing(0))

    client = _Client()
    await client.follow(failing(2))
    assert client.lines[:2] == [{"number": 0}, {"number": 1}]
    assert client.lines[2]["problem"]["code"] == "invalid_argument"


@on_loop
async def test_lines_that_cannot_wait_end_for_a_reader_who_falls_too_far_behind() -> None:
    client = _Client()
    client.may_send.clear()
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[dict[str, str], None]:
        try:
            while True:
                yield {"text": "x" * 1000}
        finally:
            closed.set()

    following = asyncio.create_task(client.follow(endless(), max_waiting_bytes=100_000))
    await closed.wait()
    client.may_send.set()
    await following
    assert 100_000 < len(client.body) < 110_000
    assert client.lines[-1]["problem"]["code"] == "slow_reader"


@on_loop
async def test_lines_that_can_wait_do_so() -> None:
    client = _Client()
    client.may_send.clear()
    given = 0

    async def patient() -> AsyncGenerator[dict[str, str], None]:
        nonlocal given

        while given < 2000:
            given += 1
            yield {"text": "x" * 1000}

    following = asyncio.create_task(client.follow(patient()))

    # As many turns of the loop as it takes to see that nothing more comes.
    for _ in range(100):
        await asyncio.sleep(0)

    assert given < 300
    client.may_send.set()
    await following
    assert len(client.lines) == 2000


@on_loop
async def test_a_client_that_goes_away_ends_what_it_followed() -> None:
    client = _Client()
    closed = asyncio.Event()

    async def silent() -> AsyncGenerator[dict[str, int], None]:
        try:
            yield {"number": 0}
            await asyncio.Event().wait()
        finally:
            closed.set()

    following = asyncio.create_task(client.follow(silent()))
    client.gone.set()
    await following
    assert closed.is_set()


@on_loop
async def test_the_end_of_the_server_is_reported_in_the_last_line() -> None:
    client = _Client()

    async def silent() -> AsyncGenerator[dict[str, int], None]:
        yield {"number": 0}
        client.drain.end()
        await asyncio.Event().wait()

    await client.follow(silent())
    assert client.lines[0] == {"number": 0}
    assert client.lines[-1]["problem"]["code"] == "server_ending"
    assert client.lines[-1]["problem"]["outcome_unknown"] is True
