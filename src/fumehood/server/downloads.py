"""Downloads: which part and version of a file a request wants (RFC 9110), and a body that is read while it is sent.

A header that cannot be parsed as a range is ignored: the whole file is sent. At most one piece of a file or of a saved
state is in memory, and reading stops when the client disconnects.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.cancellation import first_of
from fumehood.errors import FumehoodError
from fumehood.server.connections import break_off
from fumehood.server.responses import send_bytes, send_unless_gone
from fumehood.values.sandbox import FileInfo

# One range; several at once are answered with the whole, as the standard allows.
_RANGE = re.compile(r"bytes\s*+=\s*+(\d{0,18}+)\s*+-\s*+(\d{0,18}+)\s*+", re.ASCII | re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file, from `start` up to but not including `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of bytes; 0 when the file has no such part."""
        return max(0, self.end - self.start)


def etag_of(info: FileInfo) -> str:
    """Returns the ETag of a file, which is derived from its size and the time of its last change."""
    changed = 0 if info.modified_at is None else round(info.modified_at.timestamp() * 1_000_000)
    return f'"{changed:x}-{info.size_bytes:x}"'


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Returns whether the client has this version already (`If-None-Match`)."""
    given = headers.get("if-none-match", "")
    return given.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in given.split(",")]


def wanted_span(headers: Mapping[str, str], info: FileInfo, etag: str) -> Span | None:
    """Returns the requested part, or None for the whole file.

    An empty part means that the range is outside the file.
    """
    condition = headers.get("if-range")

    # The part of another version would not fit what the client has.
    if condition is not None and condition.strip() not in (etag, last_modified(info)):
        return None

    return span_of(headers, info.size_bytes)


def span_of(headers: Mapping[str, str], size: int) -> Span | None:
    """Returns the requested part of `size` bytes, or None for all.

    An empty part means that the range is outside the file.
    """
    match = _RANGE.fullmatch(headers.get("range", ""))

    if match is None or not (match[1] or match[2]):
        return None

    if not match[1]:
        return Span(max(0, size - int(match[2])), size)

    start = int(match[1])
    end = min(size, int(match[2]) + 1) if match[2] else size

    # 5-2 is no range at all.
    return None if match[2] and int(match[2]) < start else Span(start, end)


def last_modified(info: FileInfo) -> str | None:
    """Returns the value of `Last-Modified`, or None if the guest's clock made no sense."""
    return None if info.modified_at is None else format_datetime(info.modified_at, usegmt=True)


def attachment(name: str) -> str:
    """Returns the `Content-Disposition` of a download: no character of the name can end the header."""
    plain = _UNSAFE.sub("_", name)[:255] or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


class Download(Response):
    """An answer that is sent in pieces.

    Args:
        first: Its first piece.
        pieces: The remaining pieces; closed at the end, or when the client disconnects. An error breaks off the answer.
        headers: Headers of the answer; without a length, the answer ends with the last piece.
        status: Its status.
        until_over: Waits until the answer has to be broken off, whether or not the client reads; returns the reason.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        status: int = 200,
        *,
        until_over: Callable[[], Coroutine[Any, Any, str]] | None = None,
    ) -> None:
        super().__init__(status_code=status, headers=headers)

        if "Content-Length" not in headers:
            del self.headers["content-length"]

        self._first = first
        self._pieces = pieces
        self._until_over = until_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, until it ends or the client disconnects."""
        async with aclosing(self._pieces):
            sending = send_unless_gone(self._send(scope, send), receive)

            try:
                reason = await _unless_over(sending, (self._until_over or _never_over)())
            except FumehoodError as error:
                reason = error.message

            if reason is not None:
                await break_off(scope, reason)

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_bytes(self._first, send)

        try:
            async for piece in self._pieces:
                await send_bytes(piece, send)
        except FumehoodError as error:
            await break_off(scope, error.message)
            return

        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _never_over() -> str:
    return await asyncio.Future()


async def _unless_over(
    sending: Coroutine[Any, Any, None], until_over: Coroutine[Any, Any, str]
) -> str | None:
    """Sends an answer; returns the reason if it has to be broken off first."""
    task, over = asyncio.create_task(sending), asyncio.create_task(until_over)

    if task not in await first_of(task, over):
        return over.result()

    task.result()
    return None
