"""The messages between an adapter and a server: requests as text and bytes, answers as bytes alone.

Used in both processes; it only computes. An answer is one `bytes` object, which Ray carries as it is: a server
unpickles nothing that an adapter sends. The head of an answer is its status and its headers, with their
length before them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

# Ray carries up to 100 KB within a call, and more through shared memory, which takes five times as long.
PIECE_BYTES = 88 * 1024
# No connection to the host daemon was made: nothing was begun.
NOT_REACHED = 0
# The connection broke off: the request may have been carried out.
BROKEN_OFF = 1
_HEAD = struct.Struct(">HI")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """An answer, or the head of one.

    Attributes:
        status: The status of HTTP, `NOT_REACHED` or `BROKEN_OFF`.
        headers: Its headers; empty if there was no answer.
        body: Its body; the reason if there was no answer.
    """

    status: int
    headers: Headers
    body: bytes


class NotAnAnswerError(ValueError):
    """The bytes are not an answer that an adapter of this version sends."""


def pack_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns headers as lines; HTTP allows no line break within one."""
    return b"".join(b"%s: %s\r\n" % header for header in headers)


def unpack_headers(block: bytes) -> Headers:
    """Returns the headers of lines.

    Raises:
        NotAnAnswerError: A line has no colon.
    """
    headers: Headers = []

    for line in block.split(b"\r\n")[:-1]:
        name, colon, value = line.partition(b": ")

        if not colon:
            raise NotAnAnswerError("a header has no colon")

        headers.append((name, value))

    return headers


def pack(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Returns an answer as bytes."""
    block = pack_headers(headers)
    return _HEAD.pack(status, len(block)) + block + body


def unpack(data: object) -> ExchangeReply:
    """Decodes an answer.

    Raises:
        NotAnAnswerError: The data is not a packed answer.
    """
    if not isinstance(data, bytes) or len(data) < _HEAD.size:
        raise NotAnAnswerError("it is no answer")

    status, length = _HEAD.unpack_from(data)
    start = _HEAD.size + length

    if len(data) < start:
        raise NotAnAnswerError("its head is cut off")

    return ExchangeReply(status, unpack_headers(data[_HEAD.size : start]), data[start:])
