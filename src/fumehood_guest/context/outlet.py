"""The outlet: sends all output of user code to the host: text, results and errors.

It knows the current execution, gives each message its id and time, and enforces the limits of results: excess results
are counted and not sent. Text is sent completely: the host keeps its head and its tail, also when this process is
killed. The host trusts none of this and counts again. In a process that user code has forked, the outlet writes plain
text to fds 1 and 2 instead, because the channel belongs to the parent.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from contextvars import ContextVar
from typing import Any, Dict, List, Optional

from fumehood_guest.context.bundles import Bundle, encode_bundle
from fumehood_guest.context.channel import FrameSocket, Receipt, encode_lines
from fumehood_wire.messages import EXECUTION_FLAGS, MAX_TRACEBACK_BYTES

STREAM_FDS = {"stdout": 1, "stderr": 2}
# Size of one `stream` frame; a character has at most four bytes.
CHUNK_CHARACTERS = 1 << 16
_MAX_NAME_CHARACTERS = 1024
_MAX_VALUE_CHARACTERS = 10_000
_MAX_PROMPT_CHARACTERS = 80_000
_MAX_TRACEBACK_CHARACTERS = 80_000
# Below what fumehood_wire.messages allows: a line more says how many were left out.
_MAX_TRACEBACK_LINES = 5_000


class GuestExecution:
    """One request of the host: its id, its output limits, and how much was dropped so far."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.id: str = request["id"]
        self.allow_stdin: bool = request["allow_stdin"]
        self.flags: Dict[str, bool] = {name: request.get(name, False) for name in EXECUTION_FLAGS}
        self.store_history: bool = request["store_history"]
        self.after_interrupt: bool = request.get("after_interrupt", False)
        self.tells_changes: bool = request.get("changes", False)
        self.tells_telemetry: bool = request.get("telemetry", False)
        self.envs: Dict[str, str] = request["envs"]
        self.result_bytes: int = request["result_bytes"]
        self.results_left: int = request["result_count"]
        self.dropped = {"stdout": 0, "stderr": 0, "results": 0}
        self.failed = False
        # The content of the standard input; None if the host has sent none.
        self.stdin: Optional[bytes] = None
        self._stdin_bytes: Optional[int] = request.get("stdin_bytes")
        self.tools: List[Dict[str, Any]] = request.get("tools", [])
        self.tool_calls: int = request.get("tool_calls", 0)

    @property
    def hears_replies(self) -> bool:
        """Whether its code may ask the host for something."""
        return self.allow_stdin or bool(self.tools)

    def take_stdin(self, payload: bytes) -> bytes:
        """Splits the standard input off the payload of the request, and returns the code."""
        if self._stdin_bytes is None:
            return payload

        end = len(payload) - self._stdin_bytes
        self.stdin = payload[end:]
        return payload[:end]


class Outlet:
    """Sends the output of user code, under the id of its execution."""

    def __init__(self, channel: FrameSocket) -> None:
        self._channel: Optional[FrameSocket] = channel
        self._clock = channel.clock
        self._write = os.write
        # The execution whose limits apply; the last one when none runs, because threads may outlive a cell.
        self.execution: Optional[GuestExecution] = None
        # Inherited by asyncio tasks, so that their output names the cell that made them.
        self._origin: ContextVar[str] = ContextVar("fumehood_execution_id")
        self._unread = bytearray(4)
        self._ioctl = fcntl.ioctl

    @property
    def is_detached(self) -> bool:
        """Whether this process was forked by user code and has no channel."""
        return self._channel is None

    def begin(self, execution: GuestExecution) -> None:
        """Makes `execution` the current one."""
        self.execution = execution
        self._origin.set(execution.id)

    def detach(self) -> None:
        """Closes the channel; only for a forked child of user code."""
        channel, self._channel = self._channel, None

        if channel is not None:
            channel.abandon()

    def text(self, name: str, text: str) -> None:
        """Sends text of stdout or stderr; beyond its limit the host keeps head and tail, and counts the rest."""
        execution = self.execution

        if self._channel is None:
            self._write_plain(STREAM_FDS[name], text)
            return

        if execution is None:
            return

        for start in range(0, len(text), CHUNK_CHARACTERS):
            piece = text[start : start + CHUNK_CHARACTERS]
            self._channel.send(self._stream_header(name), piece.encode("utf-8", "backslashreplace"))

    def chunk(self, name: str, text: str, receipt: Receipt) -> None:
        """Sends text of at most `CHUNK_CHARACTERS`; the caller blocks signals."""
        if self._channel is None:
            receipt.is_sent = True
            self._write_plain(STREAM_FDS[name], text)
        elif self.execution is None:
            receipt.is_sent = True
        else:
            payload = text.encode("utf-8", "backslashreplace")
            self._channel.send(self._stream_header(name), payload, is_quiet=True, receipt=receipt)

    def _stream_header(self, name: str) -> Dict[str, Any]:
        header: Dict[str, Any] = {"type": "stream", "id": self._id(), "name": name}

        for stream, fd in STREAM_FDS.items():
            if unread_bytes := self._unread_bytes(fd):
                header[f"unread_{stream}"] = unread_bytes

        # After the count: the host subtracts what it has read since this time.
        header["at"] = self._clock()
        return header

    def bundle(
        self,
        kind: str,
        data: Dict[str, Any],
        metadata: Optional[Dict[str, Any]] = None,
        *,
        display_id: Optional[str] = None,
        execution_count: Optional[int] = None,
    ) -> None:
        """Sends a result: `display_data`, `execute_result` or `update_display_data`."""
        execution = self.execution

        if self._channel is None:
            self._write_plain(1, f"{data.get('text/plain', '')}\n")
            return

        if execution is None:
            return

        if execution.results_left <= 0:
            execution.dropped["results"] += 1
            return

        execution.results_left -= 1
        bundle = encode_bundle(data, metadata or {}, execution.result_bytes)
        self._send(self._bundle_header(kind, bundle, display_id, execution_count), bundle.payload)

    def _bundle_header(
        self, kind: str, bundle: Bundle, display_id: Optional[str], execution_count: Optional[int]
    ) -> Dict[str, Any]:
        header: Dict[str, Any] = {
            "type": kind,
            "id": self._id(),
            "at": self._clock(),
            "parts": bundle.sizes,
            "metadata": bundle.metadata,
        }

        if bundle.truncated:
            header["truncated"] = bundle.truncated

        if display_id is not None:
            header["display_id"] = display_id

        if execution_count is not None:
            header["execution_count"] = execution_count

        return header

    def clear(self, *, wait: bool) -> None:
        """Asks the host to discard the output of the execution so far."""
        if self.execution is not None:
            self._send({"type": "clear_output", "id": self._id(), "at": self._clock(), "wait": wait})

    def comm(self, fields: Dict[str, Any], payload: bytes) -> None:
        """Sends a comm message.

        Raises:
            ValueError: The message is larger than a result may be.
        """
        execution = self.execution

        if self._channel is None or execution is None:
            return

        if len(payload) > execution.result_bytes:
            raise ValueError(
                f"a comm message of {len(payload):,} bytes; the limit is {execution.result_bytes:,} bytes"
            )

        self._send({"id": self._id(), "at": self._clock(), **fields}, payload)

    def error(self, name: str, value: str, traceback: List[str]) -> None:
        """Sends the error that ended the execution."""
        if self._channel is None or self.execution is None:
            self._write_plain(2, "\n".join(traceback) + "\n")
            return

        self.execution.failed = True
        header = {
            "type": "error",
            "id": self.execution.id,
            "at": self._clock(),
            "ename": name[:_MAX_NAME_CHARACTERS],
            "evalue": shorten(value, _MAX_VALUE_CHARACTERS),
        }
        self._send(header, _encode_traceback(traceback))

    def ask(self, prompt: str, *, password: bool) -> None:
        """Asks the host for a line of input."""
        assert self.execution is not None
        payload = shorten(prompt, _MAX_PROMPT_CHARACTERS).encode("utf-8", "backslashreplace")
        header = {"type": "input_request", "id": self.execution.id, "at": self._clock(), "password": password}
        self._send(header, payload)

    def call_tool(self, number: int, name: str, payload: bytes) -> None:
        """Asks the host to call a tool."""
        assert self.execution is not None
        header = {
            "type": "tool_request",
            "id": self.execution.id,
            "at": self._clock(),
            "call": number,
            "name": name,
        }
        self._send(header, payload)

    def changes(self, payload: bytes) -> None:
        """Sends which variables the execution has changed."""
        assert self.execution is not None
        self._send({"type": "changes", "id": self.execution.id, "at": self._clock()}, payload)

    def telemetry(self, payload: bytes) -> None:
        """Sends the telemetry of the execution."""
        assert self.execution is not None
        self._send({"type": "telemetry", "id": self.execution.id, "at": self._clock()}, payload)

    def reply(self, execution_count: int, usage: Dict[str, Any]) -> None:
        """Ends the execution; its code has ended, and the signal gate is closed."""
        execution = self.execution
        assert execution is not None
        header = {
            "type": "execute_reply",
            "id": execution.id,
            "at": self._clock(),
            "status": "error" if execution.failed else "ok",
            "execution_count": execution_count,
            **usage,
            "dropped": dict(execution.dropped),
        }
        # Later output belongs to no reply: its limits still apply, and what they drop is not reported.
        if self._channel is not None:
            self._channel.send(header, is_quiet=True)

    def ready(self) -> None:
        """Reports that the context accepts requests."""
        self._send({"type": "status", "state": "ready", "pid": os.getpid()})

    def _send(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        if self._channel is not None:
            self._channel.send(header, payload)

    def _id(self) -> str:
        assert self.execution is not None
        return self._origin.get(self.execution.id)

    def _unread_bytes(self, fd: int) -> int:
        try:
            self._ioctl(fd, termios.FIONREAD, self._unread)
        except OSError:
            return 0  # user code has closed or replaced it

        return int.from_bytes(self._unread, sys.byteorder)

    def _write_plain(self, fd: int, text: str) -> None:
        view = memoryview(text.encode("utf-8", "backslashreplace"))

        while view:
            view = view[self._write(fd, view) :]


def shorten(text: str, limit: int) -> str:
    """Returns the text; if it exceeds the limit, its start and its end with the number of omitted characters."""
    if len(text) <= limit:
        return text

    head = limit * 2 // 3
    tail = limit // 6
    return f"{text[:head]}\n... {len(text) - head - tail:,} characters left out ...\n{text[-tail:]}"


def _encode_traceback(lines: List[str]) -> bytes:
    """Returns the payload of an error: its traceback as JSON, cut to what the host takes."""
    limit = _MAX_TRACEBACK_CHARACTERS
    payload = encode_lines(_shorten_lines(lines, limit))

    # A character has up to six bytes there.
    while len(payload) > MAX_TRACEBACK_BYTES:
        limit = limit * 2 // 3
        payload = encode_lines(_shorten_lines(lines, limit))

    return payload


def _shorten_lines(lines: List[str], limit: int) -> List[str]:
    if sum(map(len, lines)) > limit:
        lines = shorten("\n".join(lines), limit).split("\n")

    if len(lines) <= _MAX_TRACEBACK_LINES:
        return lines

    half = _MAX_TRACEBACK_LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half:,} lines left out ...", *lines[-half:]]
