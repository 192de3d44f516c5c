"""The body of a request: read within a bound, decompressed if it was compressed, and its JSON field by field.

The ingress bounds the bytes on the network; this module bounds the bytes after decompression. Names are taken as
protobuf's JSON has them, `camelCase` or `snake_case`; a value of the wrong type is refused with the field's name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Receive

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError, RequestTooLargeError
from fumehood.server import json_bodies
from fumehood.server.body_limits import IngressRefusalError
from fumehood.server.json_bodies import bounded_body

_CAPITAL = re.compile(r"[A-Z]")
# JSON has infinity, by 1e999, and whole numbers of a thousand digits, too large for a float.
_MOST = 1 << 64


def read_object(data: bytes) -> Fields:
    """Returns the JSON object in a body; an empty body is an empty object.

    Raises:
        InvalidArgumentError: It is no JSON object.
    """
    return Fields(json_bodies.read_object(data) if data.strip() else {})


class Fields:
    """A JSON object of a client.

    Args:
        values: The object.
        name: Where it was found; empty for a whole body.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "") -> None:
        self._values = values
        self._name = name

    def __contains__(self, name: str) -> bool:
        return self._get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """Returns a text."""
        value = self._get(name)

        if value is None:
            return default

        if not isinstance(value, str):
            raise self._wrong(name, value, "text")

        return value

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        """Returns true or false, or the default if the field is missing."""
        value = self._get(name)

        if value is None or isinstance(value, bool):
            return default if value is None else value

        raise self._wrong(name, value, "true or false")

    def number(self, name: str) -> float | None:
        """Returns a number, or None if the field is missing."""
        value = self._get(name)

        if value is None:
            return None

        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST < value < _MOST:
            raise self._wrong(name, value, "a number")

        return value

    def integer(self, name: str, default: int = 0) -> int:
        """Returns a whole number, which protobuf's JSON may write as text."""
        value = self._get(name)

        if value is None:
            return default

        if (
            isinstance(value, str)
            and value.isascii()
            and value.removeprefix("-").isdigit()
            and len(value) < 21
        ):
            return int(value)

        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -_MOST < value < _MOST
            or value != value // 1
        ):
            raise self._wrong(name, value, "a whole number")

        return int(value)

    def name_or_number(self, name: str) -> str | int:
        """Returns a value of an enumeration, which protobuf's JSON writes by its name or its number."""
        value = self._get(name)
        return value if isinstance(value, str) else self.integer(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        value = self._get(name)

        if value is None:
            return ()

        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of texts")

        return tuple(value)

    def strings(self, name: str) -> dict[str, str]:
        """Returns a map of texts."""
        value = self._get(name)

        if value is None:
            return {}

        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(name, value, "a map of texts")

        return value

    def inner(self, name: str) -> Fields | None:
        """Returns an object in this one, or None if the field is missing."""
        value = self._get(name)

        if value is None:
            return None

        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")

        return Fields(value, f"{self._name}{name}.")

    def inners(self, name: str) -> list[Fields]:
        """Returns a list of objects in this one."""
        value = self._get(name)

        if value is None:
            return []

        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(name, value, "a list of objects")

        return [Fields(item, f"{self._name}{name}[{place}].") for place, item in enumerate(value)]

    def data(self, name: str) -> bytes | None:
        """Returns bytes, which are written as base64, or None if the field is missing."""
        value = self._get(name)

        if value is None:
            return None

        try:
            return base64.b64decode(value.replace("-", "+").replace("_", "/") + "==")
        except (AttributeError, binascii.Error, ValueError):
            raise self._wrong(name, value, "base64") from None

    def filled(self) -> list[str]:
        """Returns the names of the fields with a value other than empty lists, maps and nulls."""
        return [name for name, value in self._values.items() if value not in (None, "", [], {})]

    def _get(self, name: str) -> Any:
        value = self._values.get(name)
        return self._values.get(_CAPITAL.sub(_snake, name)) if value is None else value

    def _wrong(self, name: str, value: object, allowed: str) -> InvalidArgumentError:
        return InvalidArgumentError(field=f"{self._name}{name}", value=value, allowed=allowed)


def _snake(match: re.Match[str]) -> str:
    return f"_{match[0].lower()}"


MAX_JSON_BYTES = 16 * MIB
_PIECE_BYTES = 1 * MIB
_MAX_LEFT_BYTES = 64 * MIB
_LEFT_SECONDS = 10.0
# zlib: the largest window, with the header of gzip.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class Inbox:
    """The messages of a request, with the knowledge whether the body has ended.

    A client that still sends when its response comes often never reads it, so its body is read first.

    Args:
        receive: Gives the messages.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_over = False

    async def __call__(self) -> Message:
        """Gives the next message."""
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


async def json_body(request: Request) -> Fields:
    """Returns the JSON object in a body; an empty body is an empty object."""
    return read_object(await bounded_body(request, MAX_JSON_BYTES))


async def body_pieces(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yields a body in pieces, decompressed if its headers say gzip.

    Raises:
        InvalidArgumentError: It is compressed in another way, or is not what its headers say.
        RequestTooLargeError: Decompressed it is larger than `max_bytes`.
    """
    packing = request.headers.get("content-encoding", "identity").strip().lower()

    if packing not in ("identity", "gzip"):
        raise InvalidArgumentError(field="Content-Encoding", value=packing, allowed="gzip, or nothing")

    pieces = _unpacked(request.stream()) if packing == "gzip" else request.stream()
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
    """Compresses pieces with gzip as they come."""
    packer = zlib.compressobj(level=1, wbits=_GZIP_WINDOW)

    async with aclosing(pieces):
        async for piece in pieces:
            if ready := packer.compress(piece):
                yield ready

    yield packer.flush()
