"""The body of a request, carried as it is counted or chunk by chunk, and not a byte more.

Chunks are written anew: what comes between their sizes and their ends is not passed on, and a body that breaks the
rules ends the connection.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from fumehood.egress.http_head import HeadError, RequestHead
from fumehood.egress.pipes import PIECE_BYTES, Incoming, Pipe, PipeEndError

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})\r\n")
_MAX_SIZE_LINE_BYTES = 16
_MAX_TRAILER_BYTES = 1 << 13
_LAST_CHUNK = b"0\r\n\r\n"


async def send_body(
    incoming: Incoming, head: RequestHead, upstream: Pipe, count: Callable[[int], Awaitable[None]]
) -> None:
    """Carries the body of one request.

    Args:
        incoming: Where it comes from.
        head: Its head, which says how long it is.
        upstream: Where it goes.
        count: Called with the number of bytes of each piece; it may wait.

    Raises:
        HeadError: It breaks the rules.
        PipeEndError: It ends too early.
    """
    if head.body_bytes is not None:
        await _copy(incoming, head.body_bytes, upstream, count)
        return

    while size := await _chunk_size(incoming):
        await upstream.send(b"%x\r\n" % size)
        await _copy(incoming, size, upstream, count)

        if await incoming.take(2) != b"\r\n":
            raise HeadError("a chunk that does not end where it should")

        await upstream.send(b"\r\n")

    await _drop_trailer(incoming)
    await upstream.send(_LAST_CHUNK)


async def _copy(
    incoming: Incoming, left: int, upstream: Pipe, count: Callable[[int], Awaitable[None]]
) -> None:
    while left:
        data = await incoming.take_some(min(left, PIECE_BYTES))

        if not data:
            raise PipeEndError

        await upstream.send(data)
        await count(len(data))
        left -= len(data)


async def _chunk_size(incoming: Incoming) -> int:
    line = _CHUNK_SIZE.fullmatch(await incoming.take_through(b"\r\n", _MAX_SIZE_LINE_BYTES))

    if line is None:
        raise HeadError("the size of a chunk is malformed")

    return int(line[1], 16)


async def _drop_trailer(incoming: Incoming) -> None:
    taken = 0

    while (line := await incoming.take_through(b"\r\n", _MAX_TRAILER_BYTES)) != b"\r\n":
        taken += len(line)

        if taken > _MAX_TRAILER_BYTES:
            raise HeadError("the end of the body is too long")
