"""The pipes behind fds 1 and 2 of a context: output of child processes and C code, as text, in order.

Bytes read from a pipe are held until the channel has been read, because frames that were sent earlier come first. Bytes
are only decoded and passed on. `event_of` converts a message of the wire to an event.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fumehood.engine.channel import open_pipe
from fumehood.engine.contexts.requests_from_guest import KINDS as COMM_KINDS
from fumehood.engine.contexts.requests_from_guest import comm_event
from fumehood.engine.host_faults import explain_failure
from fumehood.engine.loop_share import LoopShare
from fumehood.values.events import ClearOutputEvent, ErrorEvent, Event, ResultEvent, StderrEvent, StdoutEvent
from fumehood.values.execution import ExecutionError, StreamName, VariableChange
from fumehood.values.results import Result
from fumehood_wire import messages, payloads

_READ_BYTES = 1 << 16
# Bound on what is read at the end of an execution: a pipe holds less, unless a process keeps writing.
_MAX_DRAIN_BYTES = 1 << 20
# Bound on what is read in one turn of the loop for frames behind it: a process may keep writing while many frames
# arrive.
_MAX_TURN_BYTES = 1 << 20
# How many of the latest reads of each pipe are remembered: frames are handled soon after they were sent.
_MOST_READS = 32


@dataclass(slots=True)
class _Held:
    """Bytes read from a pipe that must not be delivered before the channel was read."""

    stream: StreamName
    data: bytes
    read_at: float


class GuestOutput:
    """The two pipes of one context.

    Args:
        look_at_channel: Handles the frames in the channel; returns False when that takes more than one turn of the
            loop; `note_channel_caught_up` is then called when it is done.
        on_text: Called with the stream, the text, its size in bytes, and the time when it was read.
        share: The share of the loop that is charged with what is read; by default one of its own.
    """

    def __init__(
        self,
        look_at_channel: Callable[[], bool],
        on_text: Callable[[StreamName, str, int, float], None],
        share: LoopShare | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._share = share or LoopShare()
        self._look_at_channel = look_at_channel
        self._on_text = on_text
        self._held: _Held | None = None
        # Times and sizes of the latest reads whose bytes were delivered.
        self._reads: dict[StreamName, deque[tuple[float, int]]] = {
            "stdout": deque(maxlen=_MOST_READS),
            "stderr": deque(maxlen=_MOST_READS),
        }
        self._waits_for_channel = False
        self._turn_bytes = 0
        self._ended: set[int] = set()
        self._streams: dict[int, StreamName] = {}
        self._poller = select.poll()
        self.write_ends: list[int] = []
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

        try:
            self._open("stdout")
            self._open("stderr")
        except OSError:
            self.close()
            raise

    def _open(self, stream: StreamName) -> None:
        read_end, write_end = open_pipe()
        os.set_blocking(read_end, False)
        self._streams[read_end] = stream
        self.write_ends.append(write_end)
        self._watch(read_end)
        self._poller.register(read_end, select.POLLIN)

    def close_write_ends(self) -> None:
        """Closes the host's copies of the guest's ends; a second call does nothing."""
        for fd in self.write_ends:
            os.close(fd)

        self.write_ends.clear()

    def deliver_held(self, *, is_last: bool = False) -> None:
        """Delivers the held bytes, and what is in the pipes.

        Args:
            is_last: Whether this is the last delivery of the execution: the pipes are read until they are empty, even
                beyond the number of bytes for one turn of the loop.
        """
        self._deliver_held()

        if is_last:
            self._drain()
        elif self._turn_bytes < _MAX_TURN_BYTES:
            self._note_read(self._drain())

    def deliver_before(self, header: dict[str, Any]) -> None:
        """Delivers the bytes that were written before a frame was sent: held ones, and those that it counts as unread.

        What was written to a pipe after the frame stays behind it.

        Args:
            header: The header of the frame, with the time at which it was sent.
        """
        sent_at = header["at"]

        if self._held is not None and sent_at > self._held.read_at:
            self._deliver_held()

        for fd, stream in self._streams.items():
            unread_bytes = header.get(f"unread_{stream}", 0)

            if unread_bytes and self._turn_bytes < _MAX_TURN_BYTES:
                since = sum(size_bytes for read_at, size_bytes in self._reads[stream] if read_at > sent_at)
                self._deliver_some(fd, stream, min(unread_bytes - since, _MAX_DRAIN_BYTES))

    def _deliver_some(self, fd: int, stream: StreamName, most_bytes: int) -> None:
        """Delivers the next bytes of one pipe, at most so many: first of the held ones, then of the pipe itself."""
        if self._held is not None and self._held.stream == stream and most_bytes > 0:
            data, rest = self._held.data[:most_bytes], self._held.data[most_bytes:]
            read_at = self._held.read_at
            self._held = _Held(stream, rest, read_at) if rest else None
            self._deliver(stream, data, read_at)
            most_bytes -= len(data)

        while most_bytes > 0 and any(ready == fd for ready, _ in self._poller.poll(0)):
            data = os.read(fd, min(most_bytes, _READ_BYTES))

            if not data:
                return

            self._note_read(len(data))
            self._deliver(stream, data, time.monotonic())
            most_bytes -= len(data)

    def note_channel_caught_up(self) -> None:
        """Delivers the bytes that were held while the channel was read, and continues to read."""
        self._deliver_held()

        if self._waits_for_channel:
            self._waits_for_channel = False

            for fd in self._streams:
                self._watch(fd)

    def close(self) -> None:
        """Delivers the remaining bytes, and closes the pipes."""
        self._deliver_held()
        self._drain()

        for fd in self._streams:
            self._share.remove_reader(fd)
            os.close(fd)

        self._streams.clear()
        self.close_write_ends()

    def _watch(self, fd: int) -> None:
        if fd not in self._ended:
            self._share.add_reader(fd, partial(self._ready, fd))

    def _ready(self, fd: int) -> bool:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False

        if not data:
            # All writers have closed it; the channel, or init, reports the end of the context.
            self._ended.add(fd)
            self._share.remove_reader(fd)
            return False

        self._held = _Held(self._streams[fd], data, time.monotonic())

        if self._look_at_channel():
            self._deliver_held()
        elif self._streams and not self._waits_for_channel:
            # Frames in the channel may come first: nothing more is read until all of them were handled.
            self._waits_for_channel = True

            for watched in self._streams:
                self._share.remove_reader(watched)

        return False

    def _deliver_held(self) -> None:
        held, self._held = self._held, None

        if held is not None:
            self._deliver(held.stream, held.data, held.read_at)

    def _drain(self) -> int:
        """Delivers the bytes in both pipes, and returns how many there were."""
        size_bytes = 0

        # Usually both are empty.
        if not self._streams or not self._poller.poll(0):
            return size_bytes

        for fd, stream in self._streams.items():
            room = _MAX_DRAIN_BYTES

            while room > 0:
                try:
                    data = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    break

                if not data:
                    break

                room -= len(data)
                size_bytes += len(data)
                self._deliver(stream, data, time.monotonic())

        return size_bytes

    def _note_read(self, size_bytes: int) -> None:
        if size_bytes and not self._turn_bytes:
            self._loop.call_soon(self._begin_turn)

        self._turn_bytes += size_bytes

    def _begin_turn(self) -> None:
        self._turn_bytes = 0

    def _deliver(self, stream: StreamName, data: bytes, read_at: float) -> None:
        self._reads[stream].append((read_at, len(data)))
        text = self._decoders[stream].decode(data)

        if text:
            self._on_text(stream, text, len(data), read_at)


Header = dict[str, Any]


def event_of(header: Header, payload: bytes, at_seconds: float) -> Event:
    """Returns a message of an execution as an event.

    Raises:
        ProtocolError: The payload is malformed.
    """
    message_type = header["type"]

    if message_type == "stream":
        kind = StdoutEvent if header["name"] == "stdout" else StderrEvent
        return kind(text=messages.read_text(payload), at_seconds=at_seconds)

    if message_type == "clear_output":
        return ClearOutputEvent(at_seconds=at_seconds, wait=header["wait"])

    if message_type == "error":
        name, value = header["ename"], header["evalue"]
        traceback = "\n".join(messages.parse_traceback(payload))
        found = explain_failure(name, value, traceback)
        error = ExecutionError(
            kind="exception", name=name, value=value, traceback=traceback, hint=found.text if found else ""
        )
        return ErrorEvent(error=error, at_seconds=at_seconds)

    if message_type in COMM_KINDS:
        return comm_event(header, payload, at_seconds)

    result = Result(
        parts=dict(messages.split_parts(header, payload)),
        metadata=header["metadata"],
        is_main_result=message_type == "execute_result",
        display_id=header.get("display_id"),
        truncated=dict(header.get("truncated", ())),
    )
    return ResultEvent(result=result, at_seconds=at_seconds, is_update=message_type == "update_display_data")


def read_changes(payload: bytes) -> tuple[VariableChange, ...]:
    """Returns the changes that a cell reports.

    Raises:
        ProtocolError: The payload is malformed.
    """
    return tuple(VariableChange(**change) for change in payloads.parse_changes(payload))


def read_telemetry(payload: bytes) -> tuple[str, ...]:
    """Returns the telemetry that a context reports, one line each.

    Raises:
        ProtocolError: The payload is malformed.
    """
    return tuple(
        f"{said['event']} {said['detail']}".rstrip()
        + (f" ({said['count']:,} times)" if said["count"] > 1 else "")
        for said in payloads.parse_telemetry(payload)
    )
