"""Comms: the channels of Jupyter's widgets, between objects in user code and a front end.

It never imports the package `comm`: it waits until user code does, usually through a widget library, and then makes its
comms talk to the host. Messages of a front end are passed to the package, which calls the user's handlers.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from fumehood_guest.context.bundles import json_safe
from fumehood_guest.context.import_watch import call_after_import
from fumehood_wire.frames import ProtocolError
from fumehood_wire.messages import MAX_COMM_BUFFERS, MAX_COMM_ID_CHARS
from fumehood_wire.payloads import parse_comm, split_comm

if TYPE_CHECKING:
    from fumehood_guest.context.connected_shell import ConnectedShell

_PACKAGE = "comm"
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Comms:
    """The comms of a shell."""

    def __init__(self, shell: ConnectedShell) -> None:
        self._shell = shell
        call_after_import(_PACKAGE, self._take_over)

    def deliver(self, header: Dict[str, Any], payload: bytes) -> None:
        """Passes a message of a front end to its comm; drops it if the package is not loaded."""
        package = sys.modules.get(_PACKAGE)

        if package is None:
            return

        text, buffers = split_comm(header, payload)
        data, metadata = parse_comm(text)
        content = {"comm_id": header["comm_id"], "data": data}

        if "target_name" in header:
            content["target_name"] = header["target_name"]

        message = {
            "header": {"msg_type": header["type"], "msg_id": header["id"]},
            "parent_header": {},
            "content": content,
            "metadata": metadata,
            "buffers": [memoryview(one) for one in buffers],
        }
        getattr(package.get_comm_manager(), header["type"])(None, None, message)

    def send(
        self,
        fields: Dict[str, Any],
        data: Optional[Dict[str, Any]],
        metadata: Optional[Dict[str, Any]],
        buffers: Optional[Sequence[Any]],
    ) -> None:
        """Sends a message to the clients that follow the execution.

        Raises:
            ValueError: The message is too large or too deeply nested, or cannot be represented in JSON.
        """
        self._shell.streams.flush()
        parts = [memoryview(one).tobytes() for one in buffers or ()]

        if len(parts) > MAX_COMM_BUFFERS:
            raise ValueError(
                f"a comm message of {len(parts)} buffers; at most {MAX_COMM_BUFFERS} can be sent"
            )

        payload = b"".join((_encode({"data": data or {}, "metadata": metadata or {}}), *parts))
        self._shell.outlet.comm({**fields, "buffers": [len(part) for part in parts]}, payload)

    def _take_over(self, package: ModuleType) -> None:
        """Replaces the comm class of the package; called once it is imported."""
        from comm.base_comm import BaseComm, CommManager

        send = self.send

        class Comm(BaseComm):
            """A comm of this context."""

            def publish_msg(
                self,
                msg_type: str,
                data: Optional[Dict[str, Any]] = None,
                metadata: Optional[Dict[str, Any]] = None,
                buffers: Optional[List[Any]] = None,
                **keys: Any,
            ) -> None:
                """Sends one message."""
                fields = {"type": str(msg_type), "comm_id": _name(self.comm_id)}

                if msg_type == "comm_open":
                    fields["target_name"] = _name(keys.get("target_name") or self.target_name)

                send(fields, data, metadata, buffers)

        manager = CommManager()
        package.create_comm = Comm  # type: ignore[attr-defined]
        package.get_comm_manager = lambda: manager  # type: ignore[attr-defined]


def _name(text: Any) -> str:
    if not isinstance(text, str) or len(text) > MAX_COMM_ID_CHARS:
        raise ValueError(f"the name of a comm is text of at most {MAX_COMM_ID_CHARS} characters")

    return text


def _encode(said: Dict[str, Any]) -> bytes:
    """Encodes a message as JSON; simplifies values that the host would refuse, and raises if that is not enough."""
    try:
        return _accepted(_dumps(said))
    except (TypeError, ValueError, RecursionError, ProtocolError):
        return _simplified(said)


def _simplified(said: Dict[str, Any]) -> bytes:
    try:
        return _accepted(_dumps(json_safe(said)))
    except ProtocolError as error:
        raise ValueError(f"the comm message cannot be sent: {error.detail}") from None


def _accepted(text: str) -> bytes:
    content = text.encode("ascii")
    parse_comm(content)
    return content
