"""Parser of a TLS client's first message, as far as it names the server.

Runs in the host process and only computes: takes bytes, returns a name. It parses lengths within lengths, each
checked against the enclosing length, and no cryptography (RFC 8446, section 4.1.2; RFC 6066, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

# A larger message, or one in more pieces, is an attack: with each piece all of it is parsed again.
MAX_HELLO_BYTES = 1 << 14
MAX_RECORDS = 64
_RECORD_HEADER = 5
_MAX_RECORD_BYTES = 1 << 14
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_ENCRYPTED_HELLO = 0xFE0D


class HelloError(ValueError):
    """The bytes are not a TLS ClientHello, or it is malformed."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a TLS client.

    Attributes:
        server_name: The requested server name, as it was sent; None if there is none.
        hides_name: Whether the client may request another, encrypted name (ECH).
    """

    server_name: str | None
    hides_name: bool


def begins_tls(data: bytes) -> bool:
    """Returns whether the first byte of a stream is that of a TLS handshake."""
    return data[:1] == bytes((_HANDSHAKE,))


def read_client_hello(data: bytes) -> Hello | None:
    """Returns the parsed message, or None while more bytes are needed.

    Raises:
        HelloError: The bytes are not a client's first message.
    """
    message = _handshake(data)
    return None if message is None else _read_hello(_Reader(message))


def _handshake(data: bytes) -> bytes | None:
    """Returns the body of the first handshake message, which may be spread over records."""
    collected = b""
    at = records = 0

    while len(data) - at >= _RECORD_HEADER:
        records += 1

        if records > MAX_RECORDS:
            raise HelloError("the first TLS message is in too many pieces")

        kind, major = data[at], data[at + 1]
        size = int.from_bytes(data[at + 3 : at + 5], "big")

        if kind != _HANDSHAKE or major != 3 or not 0 < size <= _MAX_RECORD_BYTES:
            raise HelloError("not a TLS handshake")

        body = data[at + _RECORD_HEADER : at + _RECORD_HEADER + size]
        collected += body
        at += _RECORD_HEADER + size

        if collected and collected[0] != _CLIENT_HELLO:
            raise HelloError("not the first message of a TLS client")

        if len(collected) >= 4:
            length = int.from_bytes(collected[1:4], "big")

            if length > MAX_HELLO_BYTES:
                raise HelloError("the first TLS message is too long")

            if len(collected) >= 4 + length:
                return collected[4 : 4 + length]

        if len(body) < size:
            return None

    if data and (data[0] != _HANDSHAKE or (len(data) > 1 and data[1] != 3)):
        raise HelloError("not a TLS handshake")

    return None


def _read_hello(hello: _Reader) -> Hello:
    hello.take(2 + 32)
    hello.vector(1)
    hello.vector(2)
    hello.vector(1)

    if hello.is_at_end:
        return Hello(server_name=None, hides_name=False)

    extensions = _Reader(hello.vector(2))
    seen: set[int] = set()
    name: str | None = None

    while not extensions.is_at_end:
        kind = extensions.number(2)
        body = extensions.vector(2)

        if kind in seen:
            raise HelloError("an extension comes twice")

        seen.add(kind)

        if kind == _SERVER_NAME:
            name = _read_server_name(_Reader(body))

    if not hello.is_at_end:
        raise HelloError("bytes behind the extensions")

    return Hello(server_name=name, hides_name=_ENCRYPTED_HELLO in seen)


def _read_server_name(body: _Reader) -> str:
    names = _Reader(body.vector(2))
    kind, name = names.number(1), names.vector(2)

    if kind != 0 or not names.is_at_end or not body.is_at_end or not name.isascii():
        raise HelloError("not exactly one server name")

    return name.decode("ascii")


class _Reader:
    """Bytes that are consumed from the front, never beyond their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise HelloError("a length that leads beyond the end")

        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))
