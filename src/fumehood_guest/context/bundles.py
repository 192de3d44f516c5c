"""Bundles: a result in several formats, encoded for the wire.

Runs in a context, on the return values of user objects' representation methods, so every value may be of any type. Text
becomes UTF-8, pictures raw bytes, JSON formats JSON text that any parser accepts. A format that is too large is left
out and named, never cut: half a picture cannot be decoded.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Dict, List, NamedTuple

from fumehood_wire.rules import is_mime_name

# Formats whose content is bytes; as text they are base64, as in Jupyter.
_BINARY = frozenset(
    (
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "image/bmp",
        "application/pdf",
        "video/mp4",
        "audio/wav",
        "audio/mpeg",
    )
)
_MAX_PARTS = 32
_MAX_METADATA_BYTES = 64 * 1024
_MAX_DEPTH = 24
# The peer rejects integers with more digits: fumehood_wire.frames.MAX_INTEGER_DIGITS.
_LARGEST_INTEGER = 10**20 - 1


_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Bundle(NamedTuple):
    """The formats of one result, encoded for the wire.

    Attributes:
        sizes: The MIME type and the number of bytes of each format, in the order of the payload.
        payload: The bytes of all formats, one after the other.
        metadata: The metadata of the result.
        truncated: The formats that did not fit.
    """

    sizes: List[List[Any]]
    payload: bytes
    metadata: Dict[str, Any]
    truncated: List[List[Any]]


def encode_bundle(data: Dict[str, Any], metadata: Dict[str, Any], limit: int) -> Bundle:
    """Encodes a MIME bundle of at most `limit` bytes; what does not fit is listed in `truncated`."""
    formats = [(str(mime), _encode(str(mime), value)) for mime, value in data.items() if value is not None]
    formats = [item for item in formats if is_mime_name(item[0])][:_MAX_PARTS]
    kept: Dict[str, bytes] = {}
    truncated: List[List[Any]] = []
    left = limit

    # The small ones first: a large picture must not displace a result's text.
    for mime, content in sorted(formats, key=lambda item: len(item[1])):
        if len(content) <= left:
            kept[mime] = content
            left -= len(content)
        else:
            truncated.append([mime, len(content)])

    if truncated and "text/plain" not in kept:
        kept["text/plain"] = _notice(truncated, limit)

    ordered = [(mime, kept[mime]) for mime in ["text/plain", *(name for name, _ in formats)] if mime in kept]
    parts = dict(ordered)
    return Bundle(
        sizes=[[mime, len(content)] for mime, content in parts.items()],
        payload=b"".join(parts.values()),
        metadata=_clean_metadata(metadata),
        truncated=truncated,
    )


def _encode(mime: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)

    if mime in _BINARY and isinstance(value, str):
        return _from_base64(value)

    if mime == "application/json" or mime.endswith("+json"):
        value = to_json(value)

    return _to_str(value).encode("utf-8", "backslashreplace")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return text.encode("utf-8", "backslashreplace")


def _to_str(value: Any) -> str:
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return "".join(value)

    return value if isinstance(value, str) else str(value)


def to_json(value: Any) -> str:
    """Returns JSON text of any value; what JSON cannot represent becomes null or a string. Text is JSON already."""
    if isinstance(value, str):
        return value

    try:
        return _dumps(value)
    except (TypeError, ValueError, RecursionError):
        return _dumps(json_safe(value))


def json_safe(value: Any, depth: int = 0) -> Any:
    """Returns the value in JSON's types: finite numbers, strings, lists, and objects with string keys."""
    if value is None or isinstance(value, (bool, str)):
        return value

    if isinstance(value, int):
        return int(value) if -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER else str(value)

    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None

    if depth < _MAX_DEPTH and isinstance(value, dict):
        return {str(key): json_safe(item, depth + 1) for key, item in value.items()}

    if depth < _MAX_DEPTH and isinstance(value, (list, tuple, set, frozenset)):
        return [json_safe(item, depth + 1) for item in value]

    return _scalar(value)


def _scalar(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text

    # Scalars of numpy and similar libraries.
    item = getattr(value, "item", None)

    if callable(item) and getattr(value, "ndim", 0) == 0:
        plain = item()

        if isinstance(plain, (int, float, str, bool)):
            return json_safe(plain)

    return str(value)


def _clean_metadata(metadata: Dict[str, Any]) -> Dict[str, Any]:
    clean: Any = json_safe(metadata)

    if len(_dumps(clean)) > _MAX_METADATA_BYTES:
        return {}

    return clean if isinstance(clean, dict) else {}


def _notice(truncated: List[List[Any]], limit: int) -> bytes:
    names = ", ".join(f"{mime} of {size:,} bytes" for mime, size in truncated)
    return f"[not shown: {names}; the limit of a result is {limit:,} bytes]".encode()
