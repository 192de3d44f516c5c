"""The record of one running execution: takes events, returns an `Execution` within the limits.

Runs in the host process, without input or output of its own. The guest decides which events come, how often and in
which pieces, so every dimension is bounded here: bytes of each stream, pieces, results, bytes of results, the error's
text. Dropped output is counted. Of each stream the record keeps the head and the tail; the caller's stream of events is
cut where the limit is reached, and gets the rest of the kept output at the end.
"""

from __future__ import annotations

import codecs
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import overload

from fumehood.bounds import MIB
from fumehood.text import visible_line
from fumehood.values.events import (
    ClearOutputEvent,
    CommEvent,
    ErrorEvent,
    Event,
    InputRequestEvent,
    ResultEvent,
    StderrEvent,
    StdoutEvent,
)
from fumehood.values.execution import Execution, ExecutionError, LogEntry, Logs, StreamName
from fumehood.values.limits import Limits, Usage
from fumehood.values.requests import ProcessOutput
from fumehood.values.results import Result, cut_text, fit_result, held_bytes
from fumehood.values.sandbox import NOTHING_CUT, Truncation

__all__ = ["MAX_LOG_ENTRIES", "Transcript"]

# Bounds beside the caller's limits: they keep a hostile guest from making the record itself expensive.
MAX_TOTAL_RESULT_BYTES = 64 * MIB
MAX_COMM_EVENTS = 20_000
MAX_ERROR_NAME_CHARACTERS = 200
MAX_ERROR_VALUE_CHARACTERS = 64 * 1024
MAX_TRACEBACK_CHARACTERS = 256 * 1024
MAX_PROMPT_CHARACTERS = 4 * 1024


class Transcript:
    """Records one execution.

    Args:
        execution_id: Its id.
        context_id: The context it runs in.
        limits: The limits of its record.
        isolation: The level that it runs under.
        started_at: When the execution began, or None while it waits.
    """

    def __init__(
        self,
        *,
        execution_id: str,
        context_id: str,
        limits: Limits,
        isolation: str = "",
        started_at: datetime | None = None,
    ) -> None:
        self.started_at = started_at
        self._execution_id = execution_id
        self._context_id = context_id
        self._limits = limits
        self._isolation = isolation
        self._output = KeptOutput(limits.stdout_bytes, limits.stderr_bytes)
        self._results: list[Result] = []
        self._result_bytes = 0
        self._results_dropped = 0
        self._comm_events = 0
        self._comm_bytes = 0
        self._clear_before_next = False
        self._error: ExecutionError | None = None

    @property
    def error(self) -> ExecutionError | None:
        """The error that was recorded last."""
        return self._error

    def add(self, event: Event) -> Event | None:
        """Record an event and return the event to pass on: itself, a shortened one, or None."""
        match event:
            case StdoutEvent():
                return self._add_text("stdout", event)
            case StderrEvent():
                return self._add_text("stderr", event)
            case ResultEvent():
                return self._add_result(event)
            case ClearOutputEvent():
                return self._clear(event)
            case ErrorEvent():
                return self._add_error(event)
            case InputRequestEvent():
                return replace(event, prompt=event.prompt[:MAX_PROMPT_CHARACTERS])
            case CommEvent():
                return self._add_comm(event)
            case _:
                return event

    def number_of(self, result: Result) -> int:
        """Return the place of a recorded result among the results, from 0; the last one if it is not among them."""
        for number in range(len(self._results) - 1, -1, -1):
            if self._results[number] is result:
                return number

        return max(0, len(self._results) - 1)

    def held_back(self) -> list[StdoutEvent | StderrEvent]:
        """Return the kept output that `add` has not passed on, each piece once, to be sent at the end of the stream."""
        return [
            (StdoutEvent if entry.stream == "stdout" else StderrEvent)(
                text=entry.text, at_seconds=entry.at_seconds
            )
            for entry in self._output.unpassed()
        ]

    def finish(
        self,
        *,
        usage: Usage,
        execution_count: int | None = None,
        error: ExecutionError | None = None,
        state_lost: bool = False,
        dropped_by_guest: Truncation | None = None,
    ) -> Execution:
        """Return the complete execution.

        Args:
            usage: Its usage.
            execution_count: Its number in the context.
            error: Replaces the error of the code itself, when it was stopped from outside.
            state_lost: True when the context had to be replaced.
            dropped_by_guest: Output that the guest dropped before sending; added to what was dropped here.
        """
        return Execution(
            id=self._execution_id,
            context_id=self._context_id,
            results=tuple(self._results),
            logs=Logs(entries=tuple(self._output.entries())),
            error=_bounded(error) if error is not None else self._error,
            execution_count=execution_count,
            usage=usage,
            truncated=self._truncated(dropped_by_guest or NOTHING_CUT),
            state_lost=state_lost,
            isolation=self._isolation,
            started_at=self.started_at,
        )

    def _truncated(self, by_guest: Truncation) -> Truncation:
        stdout, stderr = self._output.dropped_bytes("stdout"), self._output.dropped_bytes("stderr")

        if not (by_guest or self._results_dropped or stdout or stderr):
            return NOTHING_CUT

        return Truncation(
            stdout_bytes=stdout + by_guest.stdout_bytes,
            stderr_bytes=stderr + by_guest.stderr_bytes,
            results=self._results_dropped + by_guest.results,
        )

    @overload
    def _add_text(self, stream: StreamName, event: StdoutEvent) -> StdoutEvent | None: ...
    @overload
    def _add_text(self, stream: StreamName, event: StderrEvent) -> StderrEvent | None: ...
    def _add_text(
        self, stream: StreamName, event: StdoutEvent | StderrEvent
    ) -> StdoutEvent | StderrEvent | None:
        text = self._output.add(stream, event.text, event.at_seconds)

        if not text:
            return None

        return event if text == event.text else replace(event, text=text)

    def _add_result(self, event: ResultEvent) -> ResultEvent | None:
        if self._clear_before_next:
            self._forget_results()

        result = fit_result(event.result, self._limits.result_bytes)
        place = self._place_of(result) if event.is_update else None
        freed = 0 if place is None else held_bytes(self._results[place])
        size_bytes = held_bytes(result)

        if self._result_bytes - freed + size_bytes > MAX_TOTAL_RESULT_BYTES or (
            place is None and len(self._results) >= self._limits.result_count
        ):
            self._results_dropped += 1
            return None

        self._result_bytes += size_bytes - freed

        if place is None:
            self._results.append(result)
        else:
            self._results[place] = result

        return event if result is event.result else replace(event, result=result)

    def _place_of(self, result: Result) -> int | None:
        if result.display_id is None:
            return None

        places = range(len(self._results))
        return next((place for place in places if self._results[place].display_id == result.display_id), None)

    def _add_comm(self, event: CommEvent) -> CommEvent | None:
        self._comm_events += 1
        self._comm_bytes += sum(map(len, event.buffers)) + len(json.dumps((event.data, event.metadata)))

        if self._comm_events <= MAX_COMM_EVENTS and self._comm_bytes <= MAX_TOTAL_RESULT_BYTES:
            return event

        self._results_dropped += 1
        return None

    def _clear(self, event: ClearOutputEvent) -> ClearOutputEvent:
        """Remove the results, as a notebook does; the logs stay, as the record of the output."""
        if event.wait:
            self._clear_before_next = True
        else:
            self._forget_results()

        return event

    def _forget_results(self) -> None:
        self._results.clear()
        self._result_bytes = 0
        self._clear_before_next = False

    def _add_error(self, event: ErrorEvent) -> ErrorEvent:
        self._error = _bounded(event.error)
        return replace(event, error=self._error)


def _bounded(error: ExecutionError) -> ExecutionError:
    return ExecutionError(
        kind=error.kind,
        name=visible_line(error.name, max_characters=MAX_ERROR_NAME_CHARACTERS),
        value=_head(error.value, MAX_ERROR_VALUE_CHARACTERS),
        traceback=_head(error.traceback, MAX_TRACEBACK_CHARACTERS),
        # Made by the engine, and short.
        hint=error.hint,
    )


def _head(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text

    return f"{text[:max_characters]}… ({len(text) - max_characters} characters cut off)"


# Entries of both streams together; further output is appended to the last entry of its stream.
MAX_LOG_ENTRIES = 20_000
_MAX_HEAD_PIECES = MAX_LOG_ENTRIES // 2
_MAX_TAIL_PIECES = MAX_LOG_ENTRIES // 4 - 1
_HEAD_SHARE = 4
# A character of UTF-8 has four bytes at most.
_MAX_CONTINUATION_BYTES = 3
_NAMES: dict[StreamName, str] = {"stdout": "standard output", "stderr": "standard error"}


@dataclass(slots=True)
class _Piece:
    """A piece of output that may still grow, or lose its beginning."""

    number: int
    stream: StreamName
    at_seconds: float
    data: bytearray


@dataclass(slots=True)
class _Stream:
    """One of the two streams.

    Attributes:
        head_room: How many more bytes the head may take.
        tail_room: The size of the tail.
        live_room: How many more bytes may be passed on while the code runs.
        total: Bytes so far.
        passed: The position up to which all output was passed on, or returned by `unpassed`.
    """

    head_room: int
    tail_room: int
    live_room: int
    total: int = 0
    passed: int = 0
    last_of_head: _Piece | None = None
    tail: deque[_Piece] = field(default_factory=deque)
    tail_bytes: int = 0
    dropped_bytes: int = 0
    dropped_lines: int = 0


class KeptOutput:
    """Keeps the head and the tail of standard output and standard error.

    Args:
        stdout_bytes: The most that is kept of standard output.
        stderr_bytes: The most that is kept of standard error.
    """

    def __init__(self, stdout_bytes: int, stderr_bytes: int) -> None:
        self._streams: dict[StreamName, _Stream] = {
            "stdout": _new_stream(stdout_bytes),
            "stderr": _new_stream(stderr_bytes),
        }
        self._head: list[_Piece] = []
        self._count = 0

    def add(self, stream: StreamName, text: str, at_seconds: float) -> str:
        """Keeps text, and returns the head of it that may be passed on now, within the limit of the stream."""
        raw = text.encode("utf-8", "replace")
        one = self._streams[stream]
        one.total += len(raw)
        live = cut_text(raw, one.live_room) if one.live_room else b""
        # Once output was held back, later output must not fill the space that a cut character left.
        one.live_room = one.live_room - len(live) if len(live) == len(raw) else 0
        one.passed += len(live)
        rest = self._add_to_head(stream, one, raw, at_seconds) if one.head_room else raw

        if rest:
            self._add_to_tail(stream, one, rest, at_seconds)

        return text if len(live) == len(raw) and text.isascii() else live.decode()

    def dropped_bytes(self, stream: StreamName) -> int:
        """Returns how much of a stream was not kept."""
        one = self._streams[stream]
        _begin_with_character(one)
        return one.dropped_bytes

    def entries(self) -> list[LogEntry]:
        """Returns all kept output, in order, with an entry for each gap."""
        pieces = list(self._head)

        for one in self._streams.values():
            _begin_with_character(one)
            pieces += one.tail

        pieces.sort(key=lambda piece: piece.number)
        return list(self._with_notices(pieces))

    def unpassed(self) -> list[LogEntry]:
        """Returns the output that `add` has held back and that is still kept, each piece once, with a note of gaps."""
        found: list[tuple[int, LogEntry]] = []

        for stream, one in self._streams.items():
            _begin_with_character(one)
            place = one.total - one.tail_bytes
            missing = place - one.passed

            for piece in one.tail:
                data = piece.data[max(0, one.passed - place) :]
                place += len(piece.data)

                if not data:
                    continue

                if missing > 0:
                    text = notice(stream, missing)
                    found.append(
                        (piece.number, LogEntry(stream=stream, text=text, at_seconds=piece.at_seconds))
                    )
                    missing = 0

                entry = LogEntry(
                    stream=stream, text=data.decode("utf-8", "replace"), at_seconds=piece.at_seconds
                )
                found.append((piece.number, entry))

            if missing > 0:
                # If not even one character fits into the tail.
                found.append(
                    (self._count + 1, LogEntry(stream=stream, text=notice(stream, missing), at_seconds=0.0))
                )

            one.passed = max(one.passed, one.total)

        found.sort(key=lambda numbered: numbered[0])
        return [entry for _, entry in found]

    def _add_to_head(self, stream: StreamName, one: _Stream, raw: bytes, at_seconds: float) -> bytes:
        """Adds bytes to the head, and returns those that did not fit."""
        head = cut_text(raw, one.head_room)
        one.head_room = one.head_room - len(head) if len(head) == len(raw) else 0

        if head and len(self._head) >= _MAX_HEAD_PIECES and one.last_of_head is not None:
            one.last_of_head.data += head
        elif head:
            one.last_of_head = self._new_piece(stream, at_seconds, head)
            self._head.append(one.last_of_head)

        return raw[len(head) :]

    def _add_to_tail(self, stream: StreamName, one: _Stream, data: bytes, at_seconds: float) -> None:
        if len(one.tail) >= _MAX_TAIL_PIECES:
            one.tail[-1].data += data
        else:
            one.tail.append(self._new_piece(stream, at_seconds, data))

        one.tail_bytes += len(data)

        while one.tail_bytes > one.tail_room:
            first = one.tail[0].data
            _drop(one, min(len(first), one.tail_bytes - one.tail_room))

    def _new_piece(self, stream: StreamName, at_seconds: float, data: bytes) -> _Piece:
        self._count += 1
        return _Piece(self._count, stream, at_seconds, bytearray(data))

    def _with_notices(self, pieces: list[_Piece]) -> Iterator[LogEntry]:
        reported: set[StreamName] = set()

        for piece in pieces:
            one = self._streams[piece.stream]

            if one.dropped_bytes and one.tail and piece is one.tail[0] and piece.stream not in reported:
                reported.add(piece.stream)
                yield LogEntry(
                    stream=piece.stream,
                    text=notice(piece.stream, one.dropped_bytes, one.dropped_lines),
                    at_seconds=piece.at_seconds,
                )

            yield LogEntry(
                stream=piece.stream, text=piece.data.decode("utf-8", "replace"), at_seconds=piece.at_seconds
            )

        for stream, one in self._streams.items():
            # If not even one character fits into the tail.
            if one.dropped_bytes and stream not in reported:
                text = notice(stream, one.dropped_bytes, one.dropped_lines)
                yield LogEntry(stream=stream, text=text, at_seconds=pieces[-1].at_seconds if pieces else 0.0)


def head_bytes(limit_bytes: int) -> int:
    """Return how much of the beginning of a stream is kept when it exceeds its limit.

    The rest of the limit is for its end.
    """
    return limit_bytes // _HEAD_SHARE


def _new_stream(limit_bytes: int) -> _Stream:
    head_room = head_bytes(limit_bytes)
    return _Stream(head_room=head_room, tail_room=limit_bytes - head_room, live_room=limit_bytes)


class CommandText:
    """The output of a command as its reader gets it and as its result keeps it: head and tail if it is too long."""

    def __init__(self) -> None:
        self._streams: dict[StreamName, _CommandStream] = {
            "stdout": _CommandStream("stdout"),
            "stderr": _CommandStream("stderr"),
        }

    def add(self, piece: ProcessOutput) -> str:
        """Keeps a piece, and returns its text, preceded by a notice if output is missing before it."""
        return "" if piece.stream == "pty" else self._streams[piece.stream].add(piece)

    def rest(self, stream: StreamName) -> str:
        """Returns the replacement text for an incomplete UTF-8 character at the end of the stream."""
        return self._streams[stream].decoder.decode(b"", final=True)

    def kept(self, stream: StreamName, truncated_bytes: int) -> str:
        """Returns the text of a stream that the result keeps.

        Args:
            stream: The stream.
            truncated_bytes: How much was written beyond the limit.
        """
        return self._streams[stream].kept(truncated_bytes)


class _CommandStream:
    def __init__(self, name: StreamName) -> None:
        self._name = name
        self._data = bytearray()
        # Where something is missing, and how much.
        self._gap = 0
        self._skipped_bytes = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: ProcessOutput) -> str:
        before = ""

        if piece.skipped_bytes:
            before = self.decoder.decode(b"", final=True) + notice(self._name, piece.skipped_bytes)
            self.decoder.reset()
            self._gap, self._skipped_bytes = len(self._data), piece.skipped_bytes

        self._data += piece.data
        return before + self.decoder.decode(piece.data)

    def kept(self, truncated_bytes: int) -> str:
        if not truncated_bytes:
            return self._data.decode("utf-8", "replace")

        total = len(self._data) + self._skipped_bytes
        limit = max(0, total - truncated_bytes)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        head = decoder.decode(self._data[: head_bytes(limit)])
        # A character that does not fit whole is left out.
        head_size = min(head_bytes(limit), len(self._data)) - len(decoder.getstate()[0])
        begin = max(self._gap, len(self._data) - limit + head_bytes(limit))
        tail = self._data[begin + rest_of_character(self._data[begin : begin + 4]) :]
        missing = notice(self._name, total - head_size - len(tail))
        return head + missing + tail.decode("utf-8", "replace")


def rest_of_character(data: bytes | bytearray) -> int:
    """Returns how many bytes at the beginning belong to a UTF-8 character that began earlier.

    At most three are counted: invalid UTF-8 could continue for megabytes, and each byte takes time.
    """
    beginning = data[:_MAX_CONTINUATION_BYTES]
    return next((place for place, byte in enumerate(beginning) if byte & 0xC0 != 0x80), len(beginning))


def notice(stream: StreamName, size_bytes: int, lines: int | None = None) -> str:
    """Return the text that stands where output was left out."""
    how_much = f"{size_bytes:,} bytes" if lines is None else f"{size_bytes:,} bytes, {lines:,} lines,"
    return f"\n[... {how_much} of {_NAMES[stream]} left out here ...]\n"


def _drop(one: _Stream, size_bytes: int) -> None:
    """Drops the beginning of the first piece of the tail."""
    first = one.tail[0].data
    one.dropped_bytes += size_bytes
    one.dropped_lines += first.count(b"\n", 0, size_bytes)
    one.tail_bytes -= size_bytes

    if size_bytes == len(first):
        one.tail.popleft()
    else:
        del first[:size_bytes]


def _begin_with_character(one: _Stream) -> None:
    """Drops the rest of a character whose beginning was dropped."""
    for _ in range(_MAX_CONTINUATION_BYTES):
        if one.dropped_bytes and one.tail and rest_of_character(one.tail[0].data[:1]):
            _drop(one, 1)
