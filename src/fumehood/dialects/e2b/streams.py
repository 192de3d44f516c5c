"""A streamed response: it stops when its client disconnects, and resets the connection when its sandbox ends.

Runs in the server process, as plain ASGI. A stream that ends early because its sandbox did is not ended regularly:
E2B's clients ask for the sandbox's health only when the connection breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TypeVar

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.cancellation import cancel_and_wait
from fumehood.errors import FumehoodError
from fumehood.server.connections import break_off
from fumehood.server.responses import send_unless_gone

_T = TypeVar("_T")


class StreamAnswer(Response):
    """A response whose body is a stream of pieces.

    Args:
        pieces: The body; closed at the end, and when the client disconnects. A FumehoodError from it resets the
            connection.
        headers: Headers of the response.
        status: Its status.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], headers: Mapping[str, str], status: int = 200
    ) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = []
        self._pieces = pieces
        MutableHeaders(raw=self.raw_headers).update(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response, until it ends or the client disconnects."""
        # The stream is closed before the response is known to be over.
        try:
            await send_unless_gone(self._send(scope, send), receive)
        except FumehoodError as error:
            await break_off(scope, error.message)

    async def _send(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._pieces):
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )

            try:
                async for piece in self._pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except FumehoodError as error:
                await break_off(scope, error.message)
                return

            await send({"type": "http.response.body", "body": b""})


async def begun(items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Returns a stream whose first item was received already: an error at its beginning is raised here."""
    try:
        first = await anext(items)
    except StopAsyncIteration:
        return _nothing()

    return _rest(first, items)


async def _rest(first: _T, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    async with aclosing(items):
        yield first

        async for item in items:
            yield item


async def _nothing() -> AsyncGenerator[_T, None]:
    return
    yield


async def with_beats(
    items: AsyncGenerator[_T, None], interval_seconds: float, beat: _T
) -> AsyncGenerator[_T, None]:
    """Yields items as they arrive, and a keepalive after each interval without an item."""
    pending: asyncio.Task[_T | None] | None = None

    try:
        while True:
            pending = asyncio.create_task(_next(items))

            while not (await asyncio.wait({pending}, timeout=interval_seconds))[0]:
                yield beat

            item = pending.result()
            pending = None

            if item is None:
                return

            yield item
    finally:
        if pending is not None:
            await cancel_and_wait(pending)

        await items.aclose()


async def _next(items: AsyncGenerator[_T, None]) -> _T | None:
    return await anext(items, None)
