"""What is kept of the two streams of an execution: the head and the tail of each, and how much lay between them.

Runs in the host process, without input or output of its own. The guest decides how much comes and in which pieces:
the bytes kept of a stream never exceed its limit, and the number of pieces has a bound. The first part of the limit is
for the head; everything later is kept until newer text takes its room, so that what was written last is always there,
however the execution ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from fumehood.execution import LogEntry, StreamName
from fumehood.results import cut_text

# Entries of both streams together; what comes when there are as many is added to the last one of its stream.
MAX_LOG_ENTRIES = 20_000
_MAX_HEAD_PIECES = MAX_LOG_ENTRIES // 2
_MAX_TAIL_PIECES = MAX_LOG_ENTRIES // 4 - 1
_HEAD_SHARE = 4
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
        head_room: What the head may still take.
        tail_room: What the tail may take altogether.
        live_room: What may still be passed on while the code runs.
        total: Bytes so far.
        passed: The place up to which all was passed on, or given in `unpassed`.
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
        stdout_bytes: What may be kept of standard output.
        stderr_bytes: What may be kept of standard error.
    """

    def __init__(self, stdout_bytes: int, stderr_bytes: int) -> None:
        self._streams: dict[StreamName, _Stream] = {
            "stdout": _new_stream(stdout_bytes),
            "stderr": _new_stream(stderr_bytes),
        }
        self._head: list[_Piece] = []
        self._count = 0

    def add(self, stream: StreamName, text: str, at_seconds: float) -> str:
        """Keeps text, and returns its head that may be passed on now, as far as the limit of the stream allows."""
        raw = text.encode("utf-8", "replace")
        one = self._streams[stream]
        one.total += len(raw)
        live = cut_text(raw, one.live_room) if one.live_room else b""
        # Once something was held back, nothing later may slip into the room that a cut character left.
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
        """Returns all that is kept, in order; where something is missing, an entry says how much."""
        pieces = list(self._head)

        for one in self._streams.values():
            _begin_with_character(one)
            pieces += one.tail

        pieces.sort(key=lambda piece: piece.number)
        return list(self._with_notices(pieces))

    def unpassed(self) -> list[LogEntry]:
        """Returns what `add` has held back and is still kept, each piece once; what is missing before it is said."""
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
                    text = _notice(stream, missing)
                    found.append(
                        (piece.number, LogEntry(stream=stream, text=text, at_seconds=piece.at_seconds))
                    )
                    missing = 0

                entry = LogEntry(
                    stream=stream, text=data.decode("utf-8", "replace"), at_seconds=piece.at_seconds
                )
                found.append((piece.number, entry))

            if missing > 0:
                # Where not one character fits into the tail.
                found.append(
                    (self._count + 1, LogEntry(stream=stream, text=_notice(stream, missing), at_seconds=0.0))
                )

            one.passed = max(one.passed, one.total)

        found.sort(key=lambda numbered: numbered[0])
        return [entry for _, entry in found]

    def _add_to_head(self, stream: StreamName, one: _Stream, raw: bytes, at_seconds: float) -> bytes:
        """Returns what there was no room for."""
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
        told: set[StreamName] = set()

        for piece in pieces:
            one = self._streams[piece.stream]

            if one.dropped_bytes and one.tail and piece is one.tail[0] and piece.stream not in told:
                told.add(piece.stream)
                yield LogEntry(
                    stream=piece.stream,
                    text=_notice(piece.stream, one.dropped_bytes, one.dropped_lines),
                    at_seconds=piece.at_seconds,
                )

            yield LogEntry(
                stream=piece.stream, text=piece.data.decode("utf-8", "replace"), at_seconds=piece.at_seconds
            )

        for stream, one in self._streams.items():
            # Where not one character fits into the tail.
            if one.dropped_bytes and stream not in told:
                text = _notice(stream, one.dropped_bytes, one.dropped_lines)
                yield LogEntry(stream=stream, text=text, at_seconds=pieces[-1].at_seconds if pieces else 0.0)


def _new_stream(limit_bytes: int) -> _Stream:
    head_room = limit_bytes // _HEAD_SHARE
    return _Stream(head_room=head_room, tail_room=limit_bytes - head_room, live_room=limit_bytes)


def _notice(stream: StreamName, size_bytes: int, lines: int | None = None) -> str:
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
    """Drops what is left of a character whose beginning was dropped."""
    while one.dropped_bytes and one.tail and one.tail[0].data[0] & 0xC0 == 0x80:
        _drop(one, 1)
