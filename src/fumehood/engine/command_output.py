"""The kept output of one command: as much as the limits allow from its two pipes, or the latest of its terminal.

Holds bytes and their order only: it reads no descriptor and never waits. If the output exceeds the limits, its end is
kept too; the rest is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.values.limits import Limits
from fumehood.values.requests import ProcessOutput
from fumehood.values.sandbox import NOTHING_CUT, Truncation
from fumehood.values.transcript import head_bytes, rest_of_character

StreamName = Literal["stdout", "stderr", "pty"]

# The largest chunk for a reader that starts late.
_PIECE_BYTES = 1 << 16
# How many switches between the two streams are recorded; beyond that only the order within each is kept.
_MAX_RUNS = 20_000
_MAX_UNSEEN_BYTES = 1 * MIB
# Each is an object, and takes time on the loop.
_EXCERPT_PIECES = 64
# The size up to which read output of a terminal is kept.
SCROLLBACK_BYTES = 256 * 1024


class CommandOutput:
    """The output of a command's two pipes: as much as the limits allow, and the end of what exceeded them.

    Args:
        limits: The bounds on the output of each pipe.
    """

    is_full = False

    def __init__(self, limits: Limits) -> None:
        self._room = {"stdout": limits.stdout_bytes, "stderr": limits.stderr_bytes}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._tail_room = {name: room - head_bytes(room) for name, room in self._room.items()}
        self._tails: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._has_ended = False
        # The order of the two: each run is a stream, and the offset in it at which the run ends.
        self._runs: list[tuple[StreamName, int]] = []

    @property
    def truncated(self) -> Truncation:
        """The size of the dropped output."""
        return Truncation(stdout_bytes=self._dropped["stdout"], stderr_bytes=self._dropped["stderr"])

    @property
    def size_bytes(self) -> int:
        """The size of the kept output, in bytes."""
        return sum(map(len, (*self._kept.values(), *self._tails.values())))

    def add(self, stream: StreamName, data: bytes) -> bool:
        """Keeps as much as fits, and the end of the rest; returns False if there is nothing for readers yet."""
        kept = data[: self._room[stream]]
        self._room[stream] -= len(kept)
        self._dropped[stream] += len(data) - len(kept)

        if len(kept) < len(data):
            tail = self._tails[stream]
            tail += data[len(kept) :]
            del tail[: max(0, len(tail) - self._tail_room[stream])]

        if not kept:
            return False

        self._kept[stream] += kept
        run = stream, len(self._kept[stream])

        if self._runs and self._runs[-1][0] == stream:
            self._runs[-1] = run
        elif len(self._runs) < _MAX_RUNS:
            self._runs.append(run)

        return True

    def end(self) -> None:
        """Makes the end of the output beyond the limits available to readers; nothing is added later."""
        self._has_ended = True

        for stream, tail in self._tails.items():
            if len(tail) < self._dropped[stream]:
                del tail[: rest_of_character(tail)]

    def pieces(self, after_bytes: int | None = None) -> Iterator[ProcessOutput | None]:
        """Yields all output from the beginning, and None whenever there is no more yet.

        Raises:
            InvalidArgumentError: `after_bytes` is given: the two pipes have no common position.
        """
        if after_bytes is not None:
            raise InvalidArgumentError(
                field="after", value=after_bytes, allowed="nothing: it is for terminals"
            )

        yield from self._heads()

        for stream, tail in self._tails.items():
            skipped_bytes = self._dropped[stream] - len(tail)

            for begin in range(0, max(len(tail), min(skipped_bytes, 1)), _PIECE_BYTES):
                data = bytes(tail[begin : begin + _PIECE_BYTES])
                yield ProcessOutput(stream=stream, data=data, skipped_bytes=0 if begin else skipped_bytes)

        while True:
            yield None

    def excerpt(self, end_bytes: int) -> list[ProcessOutput]:
        """Returns the beginning of the output in its order, and the end of each stream that goes on behind it.

        It has at most 64 pieces of the beginning and one for each stream, however often the streams take turns.

        Args:
            end_bytes: How much of the beginning, and of the ends.
        """
        found: list[ProcessOutput] = []
        taken: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        room = end_bytes

        for piece in self._heads():
            if piece is None or room <= 0 or len(found) == _EXCERPT_PIECES:
                break

            data = piece.data[:room]
            room = 0 if len(data) < len(piece.data) else room - len(data)
            data = data if room else data[: len(data) - _begun_character(data)]
            taken[piece.stream] += len(data)
            found.append(replace(piece, data=data))

        found += [last for stream in self._kept if (last := self._last(stream, taken[stream], end_bytes))]

        if not self._has_ended:
            # The rest of the last character of each may still come.
            ends = {piece.stream: place for place, piece in enumerate(found)}

            for place in ends.values():
                piece = found[place]
                found[place] = replace(
                    piece, data=piece.data[: len(piece.data) - _begun_character(piece.data)]
                )

        return found

    def ends(self, end_bytes: int) -> CommandOutput:
        """Returns a copy with the beginning and the end of each stream only; its excerpts of that size are the same.

        Args:
            end_bytes: How much of each end.
        """
        copy = object.__new__(CommandOutput)
        copy._room = dict.fromkeys(self._room, 0)
        copy._tail_room = dict.fromkeys(self._tail_room, 0)
        copy._has_ended = self._has_ended
        copy._kept = {stream: kept[:end_bytes] for stream, kept in self._kept.items()}
        copy._dropped, copy._tails = dict(self._dropped), {}

        for stream, kept in self._kept.items():
            tail = self._tails[stream][-end_bytes:]

            if len(self._tails[stream]) == self._dropped[stream]:
                # Nothing is missing between the two.
                first = max(end_bytes, len(kept) - (end_bytes - len(tail)))
                tail = kept[first:] + tail

            copy._tails[stream] = tail
            copy._dropped[stream] += len(kept) - len(copy._kept[stream])

        runs = self._runs[: _EXCERPT_PIECES + 1]
        copy._runs = [(stream, min(end, len(copy._kept[stream]))) for stream, end in runs]
        return copy

    def _last(self, stream: StreamName, taken_bytes: int, end_bytes: int) -> ProcessOutput | None:
        """Returns the end of a stream behind what was taken; None if there is no more."""
        kept, tail = self._kept[stream], self._tails[stream]
        left_bytes = len(kept) - taken_bytes + self._dropped[stream]

        if left_bytes == 0:
            return None

        last = bytes(tail[-end_bytes:])
        first = len(kept) - (end_bytes - len(last)) if len(tail) == self._dropped[stream] else len(kept)
        last = bytes(kept[max(first, taken_bytes) :]) + last
        last = last[rest_of_character(last) :] if len(last) < left_bytes else last
        return ProcessOutput(stream=stream, data=last, skipped_bytes=left_bytes - len(last))

    def _heads(self) -> Iterator[ProcessOutput | None]:
        taken: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        number = 0

        while True:
            # The last run may still grow.
            while number < len(self._runs) - 1 and taken[self._runs[number][0]] >= self._runs[number][1]:
                number += 1

            piece = self._piece(number, taken)

            if piece is None and self._has_ended:
                return

            yield piece

            if piece is not None:
                taken[piece.stream] += len(piece.data)

    def _piece(self, number: int, taken: dict[StreamName, int]) -> ProcessOutput | None:
        for stream, end in self._ahead(number):
            begin = taken[stream]

            if begin < end:
                data = self._kept[stream][begin : min(end, begin + _PIECE_BYTES)]
                return ProcessOutput(stream=stream, data=bytes(data))

        return None

    def _ahead(self, number: int) -> Iterator[tuple[StreamName, int]]:
        yield from self._runs[number : number + 1]

        if number == _MAX_RUNS - 1:
            yield from ((stream, len(kept)) for stream, kept in self._kept.items())


class TerminalOutput:
    """The output of a terminal: all unread output, and for later readers the last 256 KiB of the read output."""

    truncated = NOTHING_CUT

    def __init__(self) -> None:
        self._kept = bytearray()
        # How many bytes were written before those that are kept, and how many of all were read.
        self._first_byte = 0
        self._seen_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the terminal should block until some of its output is read."""
        return self._first_byte + len(self._kept) - self._seen_bytes >= _MAX_UNSEEN_BYTES

    @property
    def size_bytes(self) -> int:
        """The size of the kept output, in bytes."""
        return len(self._kept)

    def end(self) -> None:
        """Does nothing: no output of a terminal is held back."""

    def add(self, _stream: StreamName, data: bytes) -> bool:
        """Appends output of the terminal."""
        self._kept += data
        return True

    def pieces(self, after_bytes: int | None = None) -> Iterator[ProcessOutput | None]:
        """Yields output, and None whenever there is no more yet.

        A chunk counts as read when the next one is requested.

        Args:
            after_bytes: The position, in bytes of all output so far, at which to start; bytes that are no longer kept
                are counted as skipped. None: the unread output; several readers without a position share it.
        """
        position = self._seen_bytes if after_bytes is None else after_bytes

        while True:
            if after_bytes is None:
                # Another reader may have read more.
                position = max(position, self._seen_bytes)

            skipped_bytes = max(0, self._first_byte - position)
            position += skipped_bytes
            begin = position - self._first_byte
            data = bytes(self._kept[begin : begin + _PIECE_BYTES])

            if not data:
                yield None
                continue

            yield ProcessOutput(stream="pty", data=data, skipped_bytes=skipped_bytes)
            position += len(data)
            self._note_seen(position)

    def _note_seen(self, position: int) -> None:
        self._seen_bytes = max(self._seen_bytes, position)
        surplus = self._seen_bytes - self._first_byte - SCROLLBACK_BYTES

        if surplus > 0:
            del self._kept[:surplus]
            self._first_byte += surplus


def _begun_character(data: bytes) -> int:
    """Returns how many bytes at the end belong to a UTF-8 character that goes on behind them."""
    for size in range(1, min(3, len(data)) + 1):
        byte = data[-size]

        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return size if size < needed else 0

    return 0
