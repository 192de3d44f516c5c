"""The state of a kernel: its names, its open comms, its history, and the queue of requests.

All of it is in memory, bounded, and gone with the kernel. This module sends no request to the sandbox: `kernel` and
`shell` do, and decide their order.
"""

from __future__ import annotations

import asyncio
import fnmatch
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from fumehood.dialects.jupyter.audience import Audience
from fumehood.dialects.jupyter.messages import JupyterMessage, compose, timestamp
from fumehood.dialects.jupyter.outputs import Output
from fumehood.dialects.jupyter.spec import KernelSpec
from fumehood.port.backend import Backend
from fumehood.values.events import InputRequestEvent
from fumehood.values.requests import DEFAULT_CONTEXT_ID

_MAX_COMMS = 10_000


class OpenComms:
    """The open comms of one kernel and the target of each; comms beyond a bound are not remembered."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}

    def note(self, kind: str, comm_id: str, target_name: str) -> None:
        """Updates the open comms by a comm message, whichever side has sent it."""
        if kind == "comm_close":
            self._targets.pop(comm_id, None)
        elif kind == "comm_open" and len(self._targets) < _MAX_COMMS:
            self._targets[comm_id] = target_name

    def clear(self) -> None:
        """Clears the state, when the context is gone."""
        self._targets.clear()

    def answer(self, target_name: object) -> dict[str, Any]:
        """Returns the answer to a `comm_info_request`: all comms, or those of one target."""
        return {
            comm_id: {"target_name": name}
            for comm_id, name in self._targets.items()
            if not target_name or name == target_name
        }


_MAX_ENTRIES = 1000
_MAX_CHARACTERS = 1 << 20
# The cost of a search is the product of these two, for each cell.
_MAX_PATTERN_CHARACTERS = 100
_MAX_SEARCHED_CHARACTERS = 10_000


class History:
    """The code that a kernel has run, the oldest first; a restart begins a new session."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int, str]] = deque()
        self._characters = 0
        self._session = 1

    def add(self, number: int, source: str) -> None:
        """Adds a cell; the oldest cells are removed if there is no room."""
        if len(source) > _MAX_CHARACTERS:
            return

        self._entries.append((self._session, number, source))
        self._characters += len(source)

        while len(self._entries) > _MAX_ENTRIES or self._characters > _MAX_CHARACTERS:
            self._characters -= len(self._entries.popleft()[2])

    def begin_session(self) -> None:
        """Begins a new session, when the kernel was restarted."""
        self._session += 1

    def answer(self, content: Mapping[str, Any]) -> list[list[Any]]:
        """Returns the answer to a `history_request`: session, number and source of each cell.

        Outputs are not kept: if they are requested, they are None.
        """
        found = self._found(content)
        with_output = content.get("output") is True
        return [
            [session, number, [source, None] if with_output else source] for session, number, source in found
        ]

    def _found(self, content: Mapping[str, Any]) -> list[tuple[int, int, str]]:
        kind = content.get("hist_access_type")
        count = _whole(content.get("n"), _MAX_ENTRIES)

        if kind == "range":
            return self._range(content)

        entries = list(self._entries)

        if kind == "search":
            pattern = _pattern(content.get("pattern"))
            entries = [
                entry
                for entry in entries
                if fnmatch.fnmatchcase(entry[2][:_MAX_SEARCHED_CHARACTERS], pattern)
            ]

            if content.get("unique") is True:
                entries = sorted({entry[2]: entry for entry in entries}.values())

        return entries[-count:] if count else []

    def _range(self, content: Mapping[str, Any]) -> list[tuple[int, int, str]]:
        session = _whole(content.get("session"), 0, low=-_MAX_ENTRIES)
        wanted = session if session > 0 else self._session + session
        start = _whole(content.get("start"), 0)
        stop = _whole(content.get("stop"), 1 << 60)
        chosen = (entry for entry in self._entries if entry[0] == wanted and start <= entry[1] < stop)
        return list(islice(chosen, _MAX_ENTRIES))


def _pattern(value: object) -> str:
    """Returns the search pattern; a long one is cut."""
    pattern = str(value or "*")
    return (
        pattern if len(pattern) <= _MAX_PATTERN_CHARACTERS else f"{pattern[: _MAX_PATTERN_CHARACTERS - 1]}*"
    )


def _whole(value: object, default: int, *, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return default

    return max(low, value)


_MAX_REQUESTS = 1000
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A message of a client, its size, and the session that gets the reply."""

    message: JupyterMessage
    size_bytes: int
    session: str
    backend: Backend

    @property
    def msg_type(self) -> str:
        """The type of the request."""
        return self.message.msg_type

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of the request."""
        return self.message.content


class RequestQueue:
    """The requests that wait to be answered, in order."""

    def __init__(self) -> None:
        self._requests: deque[KernelRequest] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()

    def put(self, request: KernelRequest) -> bool:
        """Queues a request; false if there is no room for it."""
        if len(self._requests) >= _MAX_REQUESTS or self._bytes + request.size_bytes > _MAX_BYTES:
            return False

        self._requests.append(request)
        self._bytes += request.size_bytes
        self._arrived.set()
        return True

    async def wait(self) -> None:
        """Returns when a request waits."""
        while not self._requests:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> KernelRequest | None:
        """Returns the first request, or None if there is none any more."""
        if not self._requests:
            return None

        request = self._requests.popleft()
        self._bytes -= request.size_bytes
        return request

    def take_all(self) -> list[KernelRequest]:
        """Removes and returns all waiting requests, the first one first."""
        requests = list(self._requests)
        self._requests.clear()
        self._bytes = 0
        return requests


KernelState = Literal["starting", "idle", "busy", "dead"]


class KernelBase:
    """One kernel, without its requests.

    Args:
        kernel_id: Its name in every call.
        sandbox_id: Its sandbox.
        spec: Its kernel spec.
        context_id: The context in which its code runs.
        audience: Its clients; none yet unless given.
    """

    def __init__(
        self,
        kernel_id: str,
        sandbox_id: str,
        spec: KernelSpec,
        context_id: str = DEFAULT_CONTEXT_ID,
        audience: Audience | None = None,
    ) -> None:
        self.id = kernel_id
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.context_id = context_id
        self.state: KernelState = "idle"
        self.last_activity = datetime.now(UTC)
        self.execution_count = 0
        self.comms = OpenComms()
        self.history = History()
        self.audience = audience or Audience()
        # The last `input_request`: its execution, and its own id.
        self._question: tuple[str, str] | None = None
        self._session = uuid.uuid4().hex

    def model(self) -> dict[str, Any]:
        """Returns the kernel as the JSON model of Jupyter's REST API."""
        return {
            "id": self.id,
            "name": self.spec.name,
            "last_activity": timestamp(self.last_activity),
            "execution_state": self.state,
            "connections": len(self.audience),
        }

    def publish(self, output: Output, parent: KernelRequest | None = None) -> None:
        """Broadcasts a message to all clients, on iopub."""
        self.audience.broadcast(self._broadcasting(output, parent))

    async def publish_large(self, output: Output, parent: KernelRequest) -> None:
        """Broadcasts a message to all clients, on iopub, written in the thread for answers."""
        await self.audience.broadcast_large(self._broadcasting(output, parent))

    def reply(self, request: KernelRequest, content: Mapping[str, Any]) -> None:
        """Replies to a request, on its channel; a message that is no request has no reply."""
        if not request.msg_type.endswith("_request"):
            return

        msg_type = request.msg_type.removesuffix("_request") + "_reply"
        message = self._compose(request.message.channel, msg_type, content, request)
        self.audience.reply(request.session, message)

    def publish_state(self, state: str, parent: KernelRequest | None = None) -> None:
        """Broadcasts the state of the kernel to all clients."""
        self.publish(Output("status", {"execution_state": state}), parent)

    def ask(self, request: KernelRequest, event: InputRequestEvent) -> None:
        """Asks the client of a request for a line of input."""
        self._question = (event.execution_id, event.request_id)
        content = {"prompt": event.prompt, "password": event.is_password}
        self.audience.reply(request.session, self._compose("stdin", "input_request", content, request))

    def forget_state(self) -> None:
        """Resets the state that belonged to the replaced context."""
        self.execution_count = 0
        self.comms.clear()
        self.history.begin_session()

    def _broadcasting(self, output: Output, parent: KernelRequest | None) -> JupyterMessage:
        message = self._compose("iopub", output.msg_type, output.content, parent)
        return replace(message, metadata=output.metadata, buffers=output.buffers)

    def _compose(
        self, channel: str, msg_type: str, content: Mapping[str, Any], parent: KernelRequest | None
    ) -> JupyterMessage:
        message = compose(channel, msg_type, content, session=self._session)
        return message if parent is None else replace(message, parent_header=parent.message.header)
