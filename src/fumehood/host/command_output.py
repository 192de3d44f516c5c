"""What a command has written, kept for whoever follows it: of pipes all, of a terminal what nobody has seen yet.

Runs in the host process, without input or output of its own. The guest decides how much comes, and in which pieces:
what is kept costs little more than its bytes, however small the pieces are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fumehood.backends.requests import ProcessOutput
from fumehood.limits import MIB, Limits
from fumehood.models import NOTHING_CUT, Truncation

StreamName = Literal["stdout", "stderr", "pty"]

# Who comes late is given no more at once.
_PIECE_BYTES = 1 << 16
# How often the order between the two streams changes, as far as it is kept; behind that each keeps its own.
_MAX_RUNS = 20_000
_MAX_UNSEEN_BYTES = 1 * MIB


class CommandOutput:
    """What the two pipes of a command have carried, as far as the limits allow.

    Args:
        limits: What is kept of each.
    """

    is_full = False

    def __init__(self, limits: Limits) -> None:
        self._room = {"stdout": limits.stdout_bytes, "stderr": limits.stderr_bytes}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._kept: dict[StreamName, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        # The order of the two: each run is a stream, and the place in it up to which nothing of the other came.
        self._runs: list[tuple[StreamName, int]] = []

    @property
    def truncated(self) -> Truncation:
        """What was not kept."""
        return Truncation(stdout_bytes=self._dropped["stdout"], stderr_bytes=self._dropped["stderr"])

    @property
    def size_bytes(self) -> int:
        """What is kept."""
        return sum(map(len, self._kept.values()))

    def add(self, stream: StreamName, data: bytes) -> bool:
        """Keeps what there is room for; false when that is nothing."""
        kept = data[: self._room[stream]]
        self._room[stream] -= len(kept)
        self._dropped[stream] += len(data) - len(kept)

        if not kept:
            return False

        self._kept[stream] += kept
        run = stream, len(self._kept[stream])

        if self._runs and self._runs[-1][0] == stream:
            self._runs[-1] = run
        elif len(self._runs) < _MAX_RUNS:
            self._runs.append(run)

        return True

    def pieces(self) -> Iterator[ProcessOutput | None]:
        """Gives everything from the beginning, and None whenever there is no more yet."""
        taken: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        number = 0

        while True:
            # The last run may still grow.
            while number < len(self._runs) - 1 and taken[self._runs[number][0]] >= self._runs[number][1]:
                number += 1

            piece = self._piece(number, taken)
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
    """What a terminal has written and nobody has seen; its past has no bound, and is not kept."""

    truncated = NOTHING_CUT

    def __init__(self) -> None:
        self._unseen = bytearray()
        # How much was seen before.
        self._seen_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the terminal should wait until somebody has seen some of it."""
        return len(self._unseen) >= _MAX_UNSEEN_BYTES

    @property
    def size_bytes(self) -> int:
        """What nobody has seen."""
        return len(self._unseen)

    def add(self, _stream: StreamName, data: bytes) -> bool:
        """Keeps all of it."""
        self._unseen += data
        return True

    def pieces(self) -> Iterator[ProcessOutput | None]:
        """Gives what nobody has seen, and None whenever there is no more yet.

        A piece was seen when the next one is asked for.
        """
        position = 0

        while True:
            # Somebody else may have seen more.
            position = max(position, self._seen_bytes)
            begin = position - self._seen_bytes
            data = bytes(self._unseen[begin : begin + _PIECE_BYTES])

            if not data:
                yield None
                continue

            yield ProcessOutput(stream="pty", data=data)
            position += len(data)
            self._note_seen(position)

    def _note_seen(self, position: int) -> None:
        if position > self._seen_bytes:
            del self._unseen[: position - self._seen_bytes]
            self._seen_bytes = position
