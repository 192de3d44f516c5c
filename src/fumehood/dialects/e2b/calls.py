"""One call by Connect: its method, its deadline, and the keepalives of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.dialects.e2b import connect
from fumehood.dialects.e2b.answers import GuestJSON
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.connect import DeadlineError
from fumehood.dialects.e2b.fields import Fields
from fumehood.dialects.e2b.file_service import WATCH_KEEPALIVE, FileService
from fumehood.dialects.e2b.process_service import ProcessService
from fumehood.dialects.e2b.process_words import KEEPALIVE
from fumehood.dialects.e2b.streaming import begun, with_beats
from fumehood.errors import InvalidArgumentError

Unary = Callable[[Fields], Awaitable[dict[str, Any]]]
Streamed = Callable[[Fields], AsyncGenerator[dict[str, Any], None]]

_KEEPALIVE_SECONDS = 90.0


class Call:
    """One call.

    Args:
        request: The HTTP request.
        processes: Answers calls about commands.
        files: Answers calls about files.
        timeout_seconds: The deadline of the caller.
    """

    def __init__(
        self,
        request: Request,
        processes: ProcessService,
        files: FileService,
        timeout_seconds: float | None,
    ) -> None:
        self._request = request
        self._processes = processes
        self._timeout_seconds = timeout_seconds
        self._unary: dict[str, Unary] = {
            "process.Process/List": processes.list,
            "process.Process/SendInput": processes.send_input,
            "process.Process/CloseStdin": processes.close_stdin,
            "process.Process/SendSignal": processes.send_signal,
            "process.Process/Update": processes.update,
            "filesystem.Filesystem/Stat": files.stat,
            "filesystem.Filesystem/MakeDir": files.make_dir,
            "filesystem.Filesystem/Move": files.move,
            "filesystem.Filesystem/ListDir": files.list_dir,
            "filesystem.Filesystem/Remove": files.remove,
            "filesystem.Filesystem/CreateWatcher": files.create_watcher,
            "filesystem.Filesystem/GetWatcherEvents": files.get_watcher_events,
            "filesystem.Filesystem/RemoveWatcher": files.remove_watcher,
        }
        self._streams: dict[str, tuple[Streamed, dict[str, Any]]] = {
            "process.Process/Start": (processes.start, KEEPALIVE),
            "process.Process/Connect": (processes.connect, KEEPALIVE),
            "filesystem.Filesystem/WatchDir": (files.watch_dir, WATCH_KEEPALIVE),
        }

    async def unary(self, name: str) -> Response:
        """Answers a call without a stream."""
        if name not in self._unary:
            return JSONResponse({"code": "unimplemented", "message": f"no such method: {name[:200]}"}, 501)

        fields = await json_body(self._request)

        async with self._deadline():
            return GuestJSON(await self._unary[name](fields))

    async def stream(self, name: str) -> Response:
        """Answers a call with a stream in either direction."""
        if name == "process.Process/StreamInput":
            async with self._deadline(), aclosing(connect.frames(self._request.stream())) as inputs:
                return connect.reply_answer(await self._processes.stream_input(inputs))

        if name not in self._streams:
            return JSONResponse({"code": "unimplemented", "message": f"no such method: {name[:200]}"}, 501)

        method, beat = self._streams[name]
        messages = await begun(method(await connect.only_frame(self._request)))

        # The timeout of `Start` is that of the command: the command's end is the stream's.
        if self._timeout_seconds is not None and name != "process.Process/Start":
            messages = _until(messages, self._timeout_seconds)

        return connect.stream_answer(with_beats(messages, _beat_seconds(self._request), beat))

    def _deadline(self) -> _Deadline:
        return _Deadline(self._timeout_seconds)


class _Deadline:
    """Ends a block when its time is over, with a DeadlineError."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            raise DeadlineError(seconds=self._seconds) from None


async def _until(
    messages: AsyncGenerator[dict[str, Any], None], seconds: float
) -> AsyncGenerator[dict[str, Any], None]:
    """Yields messages until a deadline; each is awaited separately, since any task may request it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async with aclosing(messages):
        while True:
            try:
                async with asyncio.timeout_at(end):
                    message = await anext(messages, None)
            except TimeoutError:
                raise DeadlineError(seconds=seconds) from None

            if message is None:
                return

            yield message


def _beat_seconds(request: Request) -> float:
    text = request.headers.get("keepalive-ping-interval", "").strip()

    if not text:
        return _KEEPALIVE_SECONDS

    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise InvalidArgumentError(field="Keepalive-Ping-Interval", value=text, allowed="a number of seconds")

    return max(1.0, float(text))
