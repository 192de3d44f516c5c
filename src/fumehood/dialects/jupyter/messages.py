"""A message of Jupyter's protocol: checked when it comes from a client, composed when it goes to one, and its framings.

Pure functions. Only the known fields of a client's header are kept, each of bounded length: the header is repeated in
every reply. The default framing is a JSON text, or a binary frame when there are buffers: a table of 32-bit
big-endian offsets, the JSON, the buffers. In `v1.kernel.websocket.jupyter.org` every frame is binary: 64-bit
little-endian offsets, the channel's name, the four parts as JSON, the buffers. A frame that cannot be read raises
InvalidArgumentError, for any bytes.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.off_loop import json_in_pieces
from fumehood.values.json_values import check_values
from fumehood.values.plain_data import as_data

# https://jupyter-client.readthedocs.io/en/stable/messaging.html
PROTOCOL_VERSION = "5.3"
CLIENT_CHANNELS = ("shell", "control", "stdin")
_HEADER_FIELDS = ("msg_id", "msg_type", "username", "session", "date", "version")
_MAX_FIELD_CHARACTERS = 512
_USERNAME = "fumehood"


@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterMessage:
    """One message.

    Attributes:
        channel: shell, control, stdin or iopub.
        header: Its id, type, session, date, and the version of the protocol.
        parent_header: The header of the message that it answers or belongs to; empty if none.
        metadata: Its metadata.
        content: Its content.
        buffers: Binary parts.
    """

    channel: str
    header: Mapping[str, Any]
    content: Mapping[str, Any]
    parent_header: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()

    @property
    def msg_type(self) -> str:
        """Its type."""
        return str(self.header["msg_type"])


def compose(channel: str, msg_type: str, content: Mapping[str, Any], *, session: str) -> JupyterMessage:
    """Returns a message of the server, which belongs to no request yet."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": msg_type,
        "username": _USERNAME,
        "session": session,
        "date": timestamp(datetime.now(UTC)),
        "version": PROTOCOL_VERSION,
    }
    return JupyterMessage(channel=channel, header=header, content=content)


def checked(parts: Mapping[str, Any], buffers: tuple[bytes, ...] = ()) -> JupyterMessage:
    """Returns a message from the parts that a client has sent.

    Raises:
        InvalidArgumentError: The parts are not a message that a kernel accepts.
    """
    channel = parts.get("channel") or "shell"

    # A client that names no channel means shell, as with Jupyter's server.
    if channel not in CLIENT_CHANNELS:
        raise InvalidArgumentError(field="channel", value=channel, allowed=", ".join(CLIENT_CHANNELS))

    header = _object("header", parts.get("header"))

    for name in ("msg_id", "msg_type"):
        if not isinstance(header.get(name), str) or not header[name]:
            raise InvalidArgumentError(field=f"header.{name}", value=header.get(name), allowed="text")

    return JupyterMessage(
        channel=channel,
        header=_bounded(header),
        parent_header=_bounded(_object("parent_header", parts.get("parent_header"))),
        metadata=_object("metadata", parts.get("metadata")),
        content=_object("content", parts.get("content")),
        buffers=buffers,
    )


def timestamp(at: datetime) -> str:
    """Returns a time as Jupyter's clients read it: UTC, microseconds, Z."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _object(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}

    if not isinstance(value, dict):
        raise InvalidArgumentError(field=name, value=value, allowed="an object")

    return value


def _bounded(header: Mapping[str, Any]) -> dict[str, str]:
    kept = {}

    for name in _HEADER_FIELDS:
        value = header.get(name)

        if isinstance(value, str):
            if len(value) > _MAX_FIELD_CHARACTERS:
                raise InvalidArgumentError(
                    field=f"header.{name}",
                    value=f"{len(value)} characters",
                    allowed=f"at most {_MAX_FIELD_CHARACTERS} characters",
                )

            kept[name] = value

    return kept


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

    return decode_parts(channel.decode("utf-8", "replace"), parts)


def decode_parts(channel: str, parts: Sequence[bytes]) -> JupyterMessage:
    """Decodes a message of that channel from its four parts as JSON and its buffers."""
    if len(parts) < len(_V1_PARTS):
        raise _malformed(f"{len(parts)} parts", "header, parent header, metadata and content")

    named: dict[str, Any] = {name: _loads(part) for name, part in zip(_V1_PARTS, parts, strict=False)}
    return checked({**named, "channel": channel}, tuple(parts[len(_V1_PARTS) :]))


def encode_default(message: JupyterMessage, *, in_pieces: bool = False) -> str | bytes:
    """Encodes a message in the default framing: text, or bytes when it has buffers.

    Args:
        message: The message.
        in_pieces: Whether its JSON is written in many short calls, for a thread beside the loop.
    """
    body = _writer(in_pieces=in_pieces)(
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


def encode_v1(message: JupyterMessage, *, in_pieces: bool = False) -> bytes:
    """Encodes a message in the v1 framing.

    Args:
        message: The message.
        in_pieces: Whether its JSON is written in many short calls, for a thread beside the loop.
    """
    parts = [message.channel.encode(), *encode_parts(message, in_pieces=in_pieces), *message.buffers]
    offsets = _offsets(8 * (len(parts) + 2), parts)
    return b"".join([struct.pack(f"<Q{len(offsets)}Q", len(offsets), *offsets), *parts])


def encode_parts(message: JupyterMessage, *, in_pieces: bool = False) -> list[bytes]:
    """Encodes a message as four parts of JSON; its buffers follow them as they are."""
    values = (message.header, message.parent_header, message.metadata, message.content)
    return list(map(_writer(in_pieces=in_pieces), values))


def _offsets(start: int, parts: Sequence[bytes]) -> list[int]:
    """Returns the offset of each part, and finally the end of the last one."""
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


def _writer(*, in_pieces: bool) -> Callable[[Mapping[str, Any]], bytes]:
    return _dumps_in_pieces if in_pieces else _dumps


def _dumps_in_pieces(value: Mapping[str, Any]) -> bytes:
    return json_in_pieces(as_data(value)).encode("utf-8", "replace")


def _dumps(value: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(as_data(value), ensure_ascii=False, separators=(",", ":"))

    # Half a surrogate pair has no encoding, and browsers end a connection for it.
    return text.encode("utf-8", "replace")


def _malformed(value: str, allowed: str) -> InvalidArgumentError:
    return InvalidArgumentError(field="frame", value=value, allowed=allowed)
