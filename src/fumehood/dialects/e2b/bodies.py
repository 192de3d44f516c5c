"""The body of a request: read within a bound, decompressed if it was compressed, and its JSON as a message.

The ingress bounds the bytes on the network; this module bounds the bytes after decompression.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive

from fumehood.bounds import MIB
from fumehood.dialects.e2b.messages import ClientMessage as E2BMessage
from fumehood.errors import InvalidArgumentError, RequestTooLargeError
from fumehood.server import json_bodies
from fumehood.server.admission import sent_while_right_lasts
from fumehood.server.body_limits import IngressRefusalError
from fumehood.server.json_bodies import bounded_body, read_fields

MAX_JSON_BYTES = 16 * MIB
_PIECE_BYTES = 1 * MIB
_MAX_LEFT_BYTES = 64 * MIB
_LEFT_SECONDS = 10.0
# zlib: the largest window, with the header of gzip.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_Body = TypeVar("_Body", bound=E2BMessage)


class Inbox:
    """The messages of a request; knows whether the body has ended.

    A client that is still sending when its response arrives often does not read it, so its body is read first.

    Args:
        receive: Returns the next message.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_over = False

    async def __call__(self) -> Message:
        """Returns the next ASGI message, and remembers whether it was the last one of the body."""
        message = await self._receive()
        self._is_over = self._is_over or not message.get("more_body", False)
        return message

    async def empty(self) -> None:
        """Reads the rest of the body and discards it, unless it is too large or takes too long."""
        left = _MAX_LEFT_BYTES

        try:
            async with asyncio.timeout(_LEFT_SECONDS):
                while not self._is_over and left > 0:
                    left -= len((await self()).get("body", b""))
        except (TimeoutError, IngressRefusalError):
            return


def read_object(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in a body; an empty body is an empty object.

    Raises:
        InvalidArgumentError: The body is not a JSON object.
    """
    return json_bodies.read_object(data) if data.strip() else {}


def read_message(kind: type[_Body], data: bytes) -> _Body:
    """Returns the message in a body; an empty body is one without fields.

    Raises:
        InvalidArgumentError: The body is not a JSON object, or a field has the wrong form.
    """
    return read_fields(kind, read_object(data))


async def json_body(request: Request, kind: type[_Body]) -> _Body:
    """Returns the message in the body of a request, as `read_message` does."""
    return read_message(kind, await bounded_body(request, MAX_JSON_BYTES))


async def body_pieces(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yields a body in pieces, decompressed if its headers say gzip.

    Raises:
        InvalidArgumentError: The body has another compression, or does not match its headers.
        RequestTooLargeError: The decompressed body is larger than `max_bytes`.
        FumehoodError: The caller's credential stopped being valid while it sent the body.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()

    if packing not in ("identity", "gzip"):
        raise InvalidArgumentError(field="Content-Encoding", value=packing, allowed="gzip, or nothing")

    sent = sent_while_right_lasts(request.stream())
    pieces = _unpacked(sent) if packing == "gzip" else sent
    size = 0

    async for piece in pieces:
        size += len(piece)

        if size > max_bytes:
            raise RequestTooLargeError(what="file", maximum=max_bytes)

        if piece:
            yield piece


async def _unpacked(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)

    async for piece in pieces:
        # A small piece can decompress to a very large file: the output is bounded in pieces too.
        while piece and not unpacker.eof:
            yield _unpack(unpacker, piece)
            piece = unpacker.unconsumed_tail

    while not unpacker.eof:
        rest = _unpack(unpacker, unpacker.unconsumed_tail)

        if not rest:
            raise InvalidArgumentError(field="body", value="cut off", allowed="a whole gzip file")

        yield rest


def _unpack(unpacker: zlib._Decompress, piece: bytes) -> bytes:
    try:
        return unpacker.decompress(piece, _PIECE_BYTES)
    except zlib.error:
        raise InvalidArgumentError(field="body", value=piece[:20], allowed="what gzip packed") from None


async def packed(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Compresses pieces with gzip as they arrive."""
    packer = zlib.compressobj(level=1, wbits=_GZIP_WINDOW)

    async with aclosing(pieces):
        async for piece in pieces:
            if ready := packer.compress(piece):
                yield ready

    yield packer.flush()
