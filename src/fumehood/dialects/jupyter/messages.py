"""A message of Jupyter's protocol, as a value: checked when it comes from a client, composed when it goes to one.

Pure. Only the known fields of a client's header are kept, each of bounded length: the header is repeated in every
reply.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fumehood.errors import InvalidArgumentError

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
        InvalidArgumentError: It is no message that a kernel takes.
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
