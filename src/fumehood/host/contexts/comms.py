"""Comm messages in the words of the wire, in both directions.

Runs in the host process. What a caller says is checked against the bounds of the wire before it is sent, so that
no caller can break a context; what a guest says becomes an event, strictly read.
"""

from __future__ import annotations

import json
from typing import Any

from fumehood.backends.questions import CommMessage
from fumehood.errors import InvalidArgumentError
from fumehood.events import CommEvent
from fumehood_wire import payloads
from fumehood_wire.frames import ProtocolError

KINDS = frozenset({"comm_open", "comm_msg", "comm_close"})

Header = dict[str, Any]


def comm_request(message: CommMessage) -> tuple[Header, bytes]:
    """Returns header and payload of a message to a context; its id and its bounds are still to come.

    Raises:
        InvalidArgumentError: It is nested too deeply, or has too many values.
    """
    said = {"data": dict(message.data), "metadata": dict(message.metadata)}
    content = json.dumps(said, allow_nan=False).encode()
    try:
        payloads.parse_comm(content)
    except ProtocolError as error:
        raise InvalidArgumentError(field="data", value=said, allowed=f"less than that: {error}") from None

    header: Header = {
        "type": message.kind,
        "comm_id": message.comm_id,
        "buffers": [len(one) for one in message.buffers],
    }

    if message.kind == "comm_open":
        header["target_name"] = message.target_name

    return header, b"".join((content, *message.buffers))


def comm_event(header: Header, payload: bytes, at_seconds: float) -> CommEvent:
    """Returns what a context has said, from a message that has passed `check`.

    Raises:
        ProtocolError: The payload is not what a comm message holds.
    """
    content, buffers = payloads.split_comm(header, payload)
    data, metadata = payloads.parse_comm(content)
    return CommEvent(
        kind=header["type"],
        comm_id=header["comm_id"],
        at_seconds=at_seconds,
        data=data,
        metadata=metadata,
        buffers=tuple(buffers),
        target_name=header.get("target_name", ""),
    )
