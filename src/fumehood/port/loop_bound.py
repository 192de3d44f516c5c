"""Runs calls from any loop on the one loop of a backend.

Runs in the process that uses a backend. The port may be awaited from any loop; the resources of a backend (sockets,
tasks, futures) belong to one. If both are the same, calls are direct.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from fumehood.port.backend import ByteStream

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LoopBound:
    """An object that belongs to one loop and may be used from any loop.

    Args:
        loop: The loop of the object, which runs or will run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def _is_here(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    async def _do(self, function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Awaits a call on the object's loop."""
        if self._is_here():
            return await function(*args, **kwargs)

        async def work() -> _T:
            return await function(*args, **kwargs)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))

    async def _do_or_undo(
        self, make: Callable[[], Awaitable[_T]], undo: Callable[[_T], Awaitable[object]]
    ) -> _T:
        """Awaits a call on the object's loop.

        Undoes its result there if the caller is cancelled before it gets the result.

        A result can miss its caller on the way from one loop to the other, if the caller is cancelled at that moment.
        So the result is undone whether it was made before the loop learns of the cancellation, or after.
        """
        made: list[_T] = []
        is_cancelled = False

        async def work() -> _T:
            made.append(await make())

            if is_cancelled:
                await undo_made()

            return made[0]

        async def undo_made() -> None:
            for each in made:
                await undo(each)

        try:
            return await self._do(work)
        except asyncio.CancelledError:
            is_cancelled = True
            asyncio.run_coroutine_threadsafe(undo_made(), self._loop)
            raise

    async def _items(
        self, begin: Callable[[], Awaitable[AsyncGenerator[_T, None]]]
    ) -> AsyncGenerator[_T, None]:
        """Yields the items of an iterator that runs on the loop, which is started when the first item is requested."""
        items: AsyncGenerator[_T, None] | None = None
        turn = asyncio.Lock()

        async def pull() -> _T:
            nonlocal items

            async with turn:
                if items is None:
                    items = await begin()

                return await items.__anext__()

        async def close() -> None:
            # A cancelled caller gets here before its pending item has ended.
            async with turn:
                if items is not None:
                    await items.aclose()

        try:
            while True:
                try:
                    item = await self._do(_no_stop, pull)
                except _EndedError:
                    return

                yield item
        finally:
            await self._do(close)

    async def _pulled(
        self, chunks: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[bytes, None]:
        """Runs on the backend's loop: takes pieces from an iterator that belongs to the caller's loop."""
        iterator = chunks.__aiter__()

        while True:
            pull = asyncio.run_coroutine_threadsafe(_no_stop(iterator.__anext__), loop)
            try:
                yield await asyncio.wrap_future(pull)
            except _EndedError:
                return


class DistantStream(ByteStream):
    """A stream of the backend's loop, for a caller on another."""

    def __init__(self, stream: ByteStream, do: Callable[..., Awaitable[Any]]) -> None:
        self._stream = stream
        self._do = do

    async def read(self) -> bytes:
        """Read from the stream, on the backend's loop."""
        data: bytes = await self._do(self._stream.read)
        return data

    async def write(self, data: bytes) -> None:
        """Write to the stream, on the backend's loop."""
        await self._do(self._stream.write, data)

    async def end(self) -> None:
        """End the sending direction of the stream, on the backend's loop."""
        await self._do(self._stream.end)

    async def close(self) -> None:
        """Close the stream, on the backend's loop."""
        await self._do(self._stream.close)


class _EndedError(Exception):
    """An iterator has ended. StopAsyncIteration itself cannot be raised through a future."""


async def _no_stop(pull: Callable[[], Awaitable[_T]]) -> _T:
    try:
        return await pull()
    except StopAsyncIteration:
        raise _EndedError from None
