"""Frames: how one message lies on the byte stream between host and guest.

A frame is two lengths, a JSON header and a raw payload. This module cuts a stream into frames and reads the
headers. It runs in the host and in the guest, and must never do I/O, trust a length before it is checked, or
let anything but `ProtocolError` out of the decoder. The invariant: whatever a hostile peer sends, and in
whatever pieces, time is linear in the bytes received, and memory is at most about two frames.
"""

from __future__ import annotations

import json
import re
import struct
from math import isinf
from typing import Any, Literal, NoReturn, Optional, Union, get_args

__all__ = [
    "CODES",
    "MAX_DEPTH",
    "MAX_FLOAT_CHARS",
    "MAX_HEADER_BYTES",
    "MAX_INTEGER_DIGITS",
    "MAX_NODES",
    "MAX_PAYLOAD_BYTES",
    "MAX_TYPE_CHARS",
    "Code",
    "Decoder",
    "Frame",
    "Header",
    "ProtocolError",
    "encode",
    "parse_json",
]

# Values are what JSON gives; `fumehood_wire.messages.check` proves their types.
Header = dict[str, Any]
Frame = tuple[Header, bytes]

Code = Literal[
    "header_size",  # the prefix claims a header above the limit
    "payload_size",  # the prefix claims a payload above the limit
    "encoding",  # not strict UTF-8
    "syntax",  # not JSON
    "depth",  # JSON nested too deeply
    "nodes",  # JSON with too many values
    "number",  # NaN, an infinity, or too many digits
    "duplicate_key",  # one key twice in an object
    "not_object",  # the header is JSON, but not an object
    "type",  # "type" is missing, not a string, or too long
    "unknown_type",  # no message of this direction has that type
    "field",  # a field is missing, unknown, of the wrong type or out of bounds
    "payload",  # the payload does not fit its header
    "order",  # a message that is not legal now
]
CODES: tuple[Code, ...] = get_args(Code)

MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 16 << 20
MAX_DEPTH = 32
# Counted as opening brackets plus commas, which is the number of values or slightly more.
MAX_NODES = 100_000
MAX_INTEGER_DIGITS = 20
# The longest repr of a float has 24 characters.
MAX_FLOAT_CHARS = 64
MAX_TYPE_CHARS = 64

_PREFIX = struct.Struct("!II")
_MAX_LENGTH = 2**32 - 1


class ProtocolError(Exception):
    """The peer broke the protocol; nothing more can be read from this channel.

    Attributes:
        code: One of `CODES`: which rule was broken.
        detail: One line for a log. Text from the peer appears in it only shortened and as ASCII.
    """

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(code, detail)
        self.code: Code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def encode(header: Header, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame.

    Lone surrogates in the header survive: they are sent as escapes. The caller must know how large a payload its peer
    accepts.

    Raises:
        ProtocolError: The header is larger than any peer accepts, or the payload is longer than the length field can
            express.
        TypeError: The header holds something that is not JSON.
        ValueError: The header holds NaN or an infinity, or contains itself.
    """
    text = _encode_header(header).encode("ascii")

    if len(text) > MAX_HEADER_BYTES:
        raise ProtocolError("header_size", f"header of {len(text)} bytes, limit {MAX_HEADER_BYTES}")

    if len(payload) > _MAX_LENGTH:
        raise ProtocolError("payload_size", f"payload of {len(payload)} bytes, limit {_MAX_LENGTH}")

    return b"".join((_PREFIX.pack(len(text), len(payload)), text, payload))


class Decoder:
    """Cuts a byte stream into frames.

    Feed it what arrives, in any pieces, or add the bytes and take the frames one by one: a frame is decoded when it is
    taken, so that the caller decides how many of them it decodes at once. The first fault is final: every later call
    raises the same error.
    """

    __slots__ = ("_buffer", "_failure", "_max_header_bytes", "_max_payload_bytes", "_needed_bytes", "_start")

    def __init__(
        self, *, max_header_bytes: int = MAX_HEADER_BYTES, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:
        self._max_header_bytes = max_header_bytes
        self._max_payload_bytes = max_payload_bytes
        # Only a frame that has come in several pieces needs a buffer that grows.
        self._buffer: Union[bytes, bytearray] = b""
        # Where the next frame begins in it.
        self._start = 0
        # The buffer is not looked at again before it holds this many bytes from there on.
        self._needed_bytes = _PREFIX.size
        self._failure: Optional[ProtocolError] = None

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that were not returned as frames yet.

        Not zero at the end of the stream means that it was cut off.
        """
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes from the stream and return the frames that are complete now, in order.

        Raises:
            ProtocolError: The stream breaks a rule. Frames before the fault in the same call are lost.
        """
        self.add(data)
        frames = []

        while (frame := self.next_frame()) is not None:
            frames.append(frame)

        return frames

    def add(self, data: bytes) -> None:
        """Take bytes from the stream.

        Raises:
            ProtocolError: The stream has broken a rule before.
        """
        self._check_failure()

        if self._start >= len(self._buffer):
            self._buffer = bytes(data)
        elif isinstance(self._buffer, bytearray):
            # CPython moves the start of a bytearray forward here, it does not shift the rest down.
            del self._buffer[: self._start]
            self._buffer += data
        else:
            self._buffer = bytearray().join((memoryview(self._buffer)[self._start :], data))

        self._start = 0

    def next_frame(self) -> Optional[Frame]:
        """Return the next frame, or None when it is not complete.

        Raises:
            ProtocolError: The stream breaks a rule.
        """
        self._check_failure()

        if len(self._buffer) - self._start < self._needed_bytes:
            return None

        try:
            return self._take_frame()
        except ProtocolError as error:
            self._failure = ProtocolError(error.code, error.detail)
            self._buffer, self._start = b"", 0
            raise

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise ProtocolError(self._failure.code, self._failure.detail)

    def _take_frame(self) -> Optional[Frame]:
        start = self._start
        header_bytes, payload_bytes = _PREFIX.unpack_from(self._buffer, start)

        if header_bytes > self._max_header_bytes:
            raise ProtocolError(
                "header_size", f"header of {header_bytes} bytes, limit {self._max_header_bytes}"
            )

        if payload_bytes > self._max_payload_bytes:
            raise ProtocolError(
                "payload_size", f"payload of {payload_bytes} bytes, limit {self._max_payload_bytes}"
            )

        header_start = start + _PREFIX.size
        payload_start = header_start + header_bytes
        end = payload_start + payload_bytes

        if end > len(self._buffer):
            self._needed_bytes = end - start
            return None

        with memoryview(self._buffer) as view:
            header = _read_header(view[header_start:payload_start])
            payload = bytes(view[payload_start:end])

        self._needed_bytes = _PREFIX.size
        self._start = end

        if end == len(self._buffer):
            self._buffer, self._start = b"", 0

        return header, payload


def parse_json(data: bytes) -> object:
    """Return the value of a JSON text from the peer, under the same bounds as a header.

    These are strict UTF-8, `MAX_DEPTH`, `MAX_NODES`, `MAX_INTEGER_DIGITS`, `MAX_FLOAT_CHARS`, finite numbers,
    and no key twice in an object. The caller bounds the length.

    Raises:
        ProtocolError: The text exceeds one of these bounds.
    """
    return _parse_bounded(memoryview(data))


def _read_header(raw: memoryview) -> Header:
    header = _parse_bounded(raw)

    if type(header) is not dict:
        raise ProtocolError("not_object", f"header is a JSON {type(header).__name__}")

    message_type = header.get("type")

    if type(message_type) is not str or len(message_type) > MAX_TYPE_CHARS:
        raise ProtocolError("type", f'header has no "type" of at most {MAX_TYPE_CHARS} characters')

    return header


def _parse_bounded(raw: memoryview) -> object:
    try:
        text = str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("encoding", f"byte {error.start} is not UTF-8") from None
    finally:
        # A traceback may keep this frame alive; it must not keep the decoder's buffer locked.
        raw.release()

    # n opening brackets nest at most n deep, and strings hold brackets and commas as well: nearly every header, and
    # every long text, is proven harmless without a look at its structure.
    brackets = text.count("[") + text.count("{")

    if brackets > MAX_DEPTH or brackets + text.count(",") > MAX_NODES:
        _check_structure(text)

    try:
        value, end = _raw_decode(text)
    except json.JSONDecodeError as error:
        raise ProtocolError("syntax", f"{error.msg} (character {error.pos})") from None

    if end != len(text):
        raise ProtocolError("syntax", f"text after the end of the value (character {end})")

    return value


# Everything but brackets and commas, as bytes.translate wants it.
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
# Takes the rest of the text when the closing quote is missing, and so never goes back: linear on any input.
_STRING = re.compile(rb'"[^"]*"?')


def _check_structure(text: str) -> None:
    """Count exactly, before the parser builds anything.

    The strings are cut out in three linear passes. Up to the first syntax error they are found just as the
    parser finds them, and the parser goes no further than that.
    """
    without_escapes = text.encode("utf-8").replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = _STRING.sub(b"", without_escapes).translate(None, _NOT_STRUCTURE)

    if structure.count(b"[") + structure.count(b"{") + structure.count(b",") > MAX_NODES:
        raise ProtocolError("nodes", f"JSON with more than {MAX_NODES} values")

    brackets = structure.translate(_ONE_KIND, b",")
    nested = brackets

    # Each pass takes the innermost level away. One by one, brackets would take several times as long.
    for _ in range(MAX_DEPTH):
        if not nested:
            return

        nested = nested.replace(b"[]", b"")

    if nested:
        _find_structure_fault(brackets)


def _find_structure_fault(brackets: bytes) -> None:
    depth = 0

    for bracket in brackets:
        depth += 1 if bracket == ord("[") else -1

        if depth > MAX_DEPTH:
            raise ProtocolError("depth", f"JSON nested more than {MAX_DEPTH} deep")

        if depth < 0:
            raise ProtocolError("syntax", "closing bracket without an opening one")


def _build_object(pairs: list[tuple[str, Any]]) -> Header:
    value = dict(pairs)

    if len(value) != len(pairs):
        raise ProtocolError(
            "duplicate_key", f"{len(pairs)} keys in an object, {len(value)} of them different"
        )

    return value


def _build_integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS and len(text.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise ProtocolError("number", f"integer of more than {MAX_INTEGER_DIGITS} digits")

    return int(text)


def _build_float(text: str) -> float:
    if len(text) > MAX_FLOAT_CHARS:
        raise ProtocolError("number", f"number of more than {MAX_FLOAT_CHARS} characters")

    value = float(text)

    if isinf(value):
        raise ProtocolError("number", f'"{text}" is too large for a float')

    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ProtocolError("number", f'"{text}" is not JSON')


_encode_header = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_raw_decode = json.JSONDecoder(
    object_pairs_hook=_build_object,
    parse_int=_build_integer,
    parse_float=_build_float,
    parse_constant=_refuse_constant,
).raw_decode
