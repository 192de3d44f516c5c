"""The two framings of messages on a WebSocket: Jupyter's default one, and `v1.kernel.websocket.jupyter.org`.

Pure. The default framing is a JSON text, or a binary frame when there are buffers: a table of 32-bit big-endian
offsets, the JSON, the buffers. In v1 every frame is binary: 64-bit little-endian offsets, the channel's name, the four
parts as JSON, the buffers. A frame that cannot be read raises InvalidArgumentError, for any bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from fumehood.dialects.jupyter.messages import JupyterMessage, checked
from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import check_values
from fumehood.values.plain_data import as_data

V1_PROTOCOL = "v1.kernel.websocket.jupyter.org"
_MAX_PARTS = 1024
_V1_PARTS = ("header", "parent_header", "metadata", "content")


def decode_default(frame: str | bytes) -> JupyterMessage:
    """Decodes a frame of the default framing."""
    if isinstance(frame, str):
        return checked(_loads(frame))

    count = int.from_bytes(_slice(frame, 0, 4), "big")
    _check_count(count)
    offsets = struct.unpack(f"!{count}I", _slice(frame, 4, 4 * (count + 1)))
    first, *buffers = [_slice(frame, start, end) for start, end in pairwise([*offsets, len(frame)])]
    return checked(_loads(first), tuple(buffers))


def decode_v1(frame: str | bytes) -> JupyterMessage:
    """Decodes a frame of the v1 framing."""
    if isinstance(frame, str):
        raise _malformed("text", f"a binary frame of {V1_PROTOCOL}")

    count = int.from_bytes(_slice(frame, 0, 8), "little")
    _check_count(count)
    offsets = struct.unpack(f"<{count}Q", _slice(frame, 8, 8 * (count + 1)))
    channel, *parts = [_slice(frame, start, end) for start, end in pairwise(offsets)]

    if len(parts) < len(_V1_PARTS):
        raise _malformed(f"{len(parts)} parts", "header, parent header, metadata and content")

    named: dict[str, Any] = {name: _loads(part) for name, part in zip(_V1_PARTS, parts, strict=False)}
    named["channel"] = channel.decode("utf-8", "replace")
    return checked(named, tuple(parts[len(_V1_PARTS) :]))


def encode_default(message: JupyterMessage) -> str | bytes:
    """Encodes a message in the default framing: text, or bytes when it has buffers."""
    body = _dumps(
        {
            "header": message.header,
            # Some clients look here, not in the header.
            "msg_id": message.header["msg_id"],
            "msg_type": message.header["msg_type"],
            "parent_header": message.parent_header,
            "metadata": message.metadata,
            "content": message.content,
            "buffers": [],
            "channel": message.channel,
        }
    )

    if not message.buffers:
        return body.decode()

    parts = [body, *message.buffers]
    offsets = _offsets(4 * (len(parts) + 1), parts)[:-1]
    return b"".join([struct.pack(f"!I{len(parts)}I", len(parts), *offsets), *parts])


def encode_v1(message: JupyterMessage) -> bytes:
    """Encodes a message in the v1 framing."""
    values = (message.header, message.parent_header, message.metadata, message.content)
    parts = [message.channel.encode(), *map(_dumps, values), *message.buffers]
    offsets = _offsets(8 * (len(parts) + 2), parts)
    return b"".join([struct.pack(f"<Q{len(offsets)}Q", len(offsets), *offsets), *parts])


def _offsets(start: int, parts: Sequence[bytes]) -> list[int]:
    """Returns where each part begins, and at last where the last one ends."""
    return list(accumulate(map(len, parts), initial=start))


def _slice(frame: bytes, start: int, end: int) -> bytes:
    if not 0 <= start <= end <= len(frame):
        raise _malformed(
            f"offsets {start} to {end} of {len(frame)} bytes", "offsets within the frame, in order"
        )

    return frame[start:end]


def _check_count(count: int) -> None:
    if not 1 <= count <= _MAX_PARTS:
        raise _malformed(f"{count} parts", f"1 to {_MAX_PARTS} parts")


def _loads(text: str | bytes) -> Mapping[str, Any]:
    check_values(text.encode("utf-8", "replace") if isinstance(text, str) else text)

    try:
        # NaN and infinity are no JSON, and must not reach a kernel.
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise _malformed(type(error).__name__, "JSON") from None

    if not isinstance(value, dict):
        raise _malformed(type(value).__name__, "a JSON object")

    return value


def _dumps(value: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(as_data(value), ensure_ascii=False, separators=(",", ":"))

    # Half a surrogate pair has no encoding, and browsers end a connection for it.
    return text.encode("utf-8", "replace")


def _malformed(value: str, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field="frame", value=value, allowed=allowed)
