"""Computes, within bounds, strings that hostile code builds from constants or decodes.

Pure functions. Only harmless, short operations are evaluated: joining, reversing, replacing, decoding. Decompressed
data is cut, and decoded data is searched, never run, loaded or looked up.
"""

from __future__ import annotations

import ast
import base64
import binascii
import bz2
import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MAX_DECODED_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Text:
    """The constant text that an expression evaluates to; bytes are one character each.

    Attributes:
        text: The text.
        is_made: Whether the code builds it from parts.
        is_decoded: Whether the code decodes it.
        is_number: Whether the code has a number: the code of this one character.
    """

    text: str
    is_made: bool = False
    is_decoded: bool = False
    is_number: bool = False


def sliced(text: Text, how: ast.Slice) -> Text | None:
    """Return the part of a text that a slice with constant bounds selects."""
    bounds: list[int | None] = []

    for part in (how.lower, how.upper, how.step):
        if part is None:
            bounds.append(None)
        elif isinstance(part, ast.Constant) and type(part.value) is int:
            bounds.append(part.value)
        elif (
            isinstance(part, ast.UnaryOp)
            and isinstance(part.op, ast.USub)
            and isinstance(part.operand, ast.Constant)
        ):
            value = part.operand.value
            bounds.append(-value if type(value) is int else None)
        else:
            return None

    if bounds[2] == 0:
        return None

    return Text(text.text[bounds[0] : bounds[1] : bounds[2]], is_made=True)


def called_text(name: str, receiver: Text, arguments: Sequence[Text]) -> Text | None:
    """Return the result of a string function or method applied to constant strings; None if that is not known."""
    try:
        return _called(name, receiver, arguments)
    except (ValueError, LookupError, TypeError, OverflowError, EOFError, zlib.error, lzma.LZMAError, OSError):
        return None


def unpacked(data: bytes) -> bytes:
    """Return the beginning of the decompressed content of some bytes, or the bytes if they are not compressed."""
    for begin, unpack in ((b"\x78", _zlib), (b"\x1f\x8b", _gzip), (b"BZh", _bz2), (b"\xfd7zXZ", _lzma)):
        if data.startswith(begin):
            try:
                return unpack(data)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError):
                return data

    return data


def _zlib(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _MAX_DECODED_BYTES)


def _gzip(data: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(data, _MAX_DECODED_BYTES)


def _bz2(data: bytes) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, _MAX_DECODED_BYTES)


def _lzma(data: bytes) -> bytes:
    # The memory for its dictionary is what the data asks for, so that is bounded too.
    return lzma.LZMADecompressor(memlimit=16 << 20).decompress(data, _MAX_DECODED_BYTES)


_DECODE: dict[str, Callable[[bytes], bytes]] = {
    "base64.b64decode": base64.b64decode,
    "base64.standard_b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.decodebytes": base64.b64decode,
    "binascii.a2b_base64": base64.b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode,
    "binascii.unhexlify": lambda data: bytes.fromhex(data.decode()),
    "binascii.a2b_hex": lambda data: bytes.fromhex(data.decode()),
    "bytes.fromhex": lambda data: bytes.fromhex(data.decode()),
    "bytearray.fromhex": lambda data: bytes.fromhex(data.decode()),
    "zlib.decompress": _zlib,
    "gzip.decompress": _gzip,
    "bz2.decompress": _bz2,
    "lzma.decompress": _lzma,
}
_SAME: dict[str, Callable[[str], str]] = {
    ".lower": str.lower,
    ".upper": str.upper,
    ".strip": str.strip,
    ".swapcase": str.swapcase,
    ".casefold": str.casefold,
    ".title": str.title,
    ".capitalize": str.capitalize,
    ".encode": str,
    ".decode": str,
    "str": str,
    "bytes": str,
    "bytearray": str,
}


def _called(name: str, receiver: Text, arguments: Sequence[Text]) -> Text | None:
    texts = [argument.text for argument in arguments]

    if name in _DECODE and texts:
        data = _DECODE[name](texts[0].encode("latin-1"))
        return Text(data[:_MAX_DECODED_BYTES].decode("latin-1"), is_made=True, is_decoded=True)

    if name == "codecs.decode" and len(texts) == 2:
        return _by_codec(texts[0], texts[1])

    if name == ".decode" and texts and texts[0].lower().replace("-", "") not in ("utf8", "ascii", "latin1"):
        return _by_codec(receiver.text, texts[0])

    if name in _SAME:
        # As bytes, characters beyond Latin-1 would be several; names of functions have none.
        text = receiver.text if name.startswith(".") else texts[0] if texts else ""
        return Text(
            _SAME[name](text), is_made=True, is_decoded=receiver.is_decoded or _any_decoded(arguments)
        )

    if name == "chr" and len(texts) == 1 and arguments[0].is_number:
        return Text(texts[0], is_made=True)

    if name == ".join" and texts:
        grown = texts[0].count("\0") * len(receiver.text) + len(texts[0])
        pieces = texts[0].split("\0") if grown <= _MAX_DECODED_BYTES else None
        return None if pieces is None else Text(receiver.text.join(pieces), is_made=True)

    if name == ".replace" and len(texts) == 2:
        # Growth is bounded before anything is made.
        grown = receiver.text.count(texts[0]) * len(texts[1]) + len(receiver.text)
        return (
            Text(receiver.text.replace(texts[0], texts[1]), is_made=True)
            if grown <= _MAX_DECODED_BYTES
            else None
        )

    if name == ".format":
        pieces = receiver.text.split("{}")
        return _interleaved(pieces, texts)

    if name == "%":
        return _interleaved(receiver.text.split("%s"), texts)

    if name == "reversed" and texts:
        return Text("\0".join(reversed(texts[0])), is_made=True)

    return None


def _by_codec(text: str, codec: str) -> Text | None:
    codec = codec.lower().replace("-", "_")

    if codec in ("rot13", "rot_13"):
        return Text(codecs.encode(text, "rot13"), is_made=True, is_decoded=True)

    if codec in ("hex", "hex_codec"):
        data = bytes.fromhex(text)
    elif codec in ("base64", "base_64", "base64_codec"):
        data = base64.b64decode(text)
    elif codec in (
        "unicode_escape",
        "raw_unicode_escape",
        "utf_16",
        "utf_16_le",
        "utf_16_be",
        "utf_32",
        "utf_7",
    ):
        decoded = text.encode("latin-1").decode(codec)
        return Text(decoded, is_made=True, is_decoded=True)
    elif codec in ("zip", "zlib", "zlib_codec"):
        data = _zlib(text.encode("latin-1"))
    else:
        return None

    return Text(data.decode("latin-1"), is_made=True, is_decoded=True)


def _interleaved(pieces: list[str], texts: list[str]) -> Text | None:
    if len(pieces) != len(texts) + 1:
        return None

    ends = [*texts, ""]
    return Text("".join(piece + end for piece, end in zip(pieces, ends, strict=True)), is_made=True)


def _any_decoded(texts: Sequence[Text]) -> bool:
    return any(text.is_decoded for text in texts)


_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{200,}+={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){100,}")
_CODE = re.compile(
    rb"\b(?:import\s+\w|from\s+[\w.]+\s+import|exec\s*\(|eval\s*\(|__import__|os\.system|subprocess|socket\.|/bin/(?:ba)?sh)"
)
_MAX_LOOKED_AT = 65_536
# Pictures and archives begin with these; they are data and are not reported.
_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"<svg", b"%PDF")


def code_in_blob(text: str) -> tuple[str, str] | None:
    """Return the rule and the message for a long encoded text; None if the text is not encoded, or is a picture."""
    head = text[:_MAX_LOOKED_AT]
    data = _decoded(head)

    if data is None or data.startswith(_PICTURES):
        return None

    if _CODE.search(unpacked(data)):
        return "hidden-code", "a long encoded text holds code"

    return "encoded-blob", f"an encoded text of {len(text):,} characters"


def _decoded(text: str) -> bytes | None:
    stripped = text.strip()

    try:
        if _HEX.fullmatch(text):
            return bytes.fromhex(text)

        # Prose has spaces between its words, an encoding at most line ends.
        if " " in stripped or not _BASE64.fullmatch(stripped):
            return None

        whole = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(whole[: len(whole) // 4 * 4])
    except (ValueError, binascii.Error):
        return None
