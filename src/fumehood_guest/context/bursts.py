"""Lines printed in quick succession, buffered by C code: two calls of Python code cost ten times what a print does.

A burst takes the text of one stream and one thread. It sends nothing: the stream sends, and also begins and ends
bursts.
"""

from __future__ import annotations

import collections
import functools
import io
import operator
from typing import Any, Callable, Deque, List

# How much text a burst holds before it passes the text on. With the lines that wait already it is no more than those
# may be.
_BURST_BYTES = 7 * 1024


class Burst:
    """Collects the text of lines that are printed in quick succession, in a buffer of C code.

    No bytecode runs between a write and its end, nor within `move_to`, so that no signal handler finds either half
    done. Only one thread may use it.

    Args:
        hand_on: Called when the burst holds some KiB.
    """

    def __init__(self, hand_on: Callable[[], None]) -> None:
        self._pieces: Deque[bytes] = collections.deque()
        self._below = _Pieces(self._pieces, hand_on)
        self._text = io.TextIOWrapper(self._below, "utf-8", "surrogatepass", newline="\n")  # type: ignore[type-var]
        self._text._CHUNK_SIZE = _BURST_BYTES  # type: ignore[attr-defined]
        self.write = self._text.write
        self._as_text = functools.partial(str, encoding="utf-8", errors="surrogatepass")

    def pull(self) -> bool:
        """Takes over what C code still buffers, so that `move_to` finds it; returns whether there is any text."""
        self._below.is_drained = True
        try:
            self._text.flush()
        finally:
            self._below.is_drained = False

        return bool(self._pieces)

    def move_to(self, lines: List[str]) -> None:
        """Moves all text to a list; afterwards the burst is empty."""
        try:
            lines.extend(map(self._as_text, iter(self._pieces.popleft, None)))
        except IndexError:
            pass  # that was the last piece

    def clear(self) -> None:
        """Discards all text."""
        self.pull()
        self._pieces.clear()


class _Pieces:
    """The raw file to which a text stream of C code writes its bytes.

    Args:
        pieces: The list that the bytes are added to.
        hand_on: Called after bytes were added, except while the burst is drained.
    """

    closed = False

    def __init__(self, pieces: Deque[bytes], hand_on: Callable[[], None]) -> None:
        self._hand_on = hand_on
        self.is_drained = False
        # Bytes that the text stream hands over are nowhere else. A function of Python would lose them to a handler that
        # raises at its first instruction; here they are in the list before any bytecode runs:
        # `piece + keep` calls `pieces.append(piece)`, which returns None, and `None + call` calls `_call`.
        keep = type("_Keep", (), {"__radd__": pieces.append})()
        call = type("_Call", (), {"__radd__": self._call})()
        self.write: Callable[[bytes], Any] = functools.partial(functools.reduce, operator.add, (keep, call))

    def _call(self, _: None) -> None:
        if not self.is_drained:
            self._hand_on()

    def flush(self) -> None:
        """Does nothing: written bytes are in the list already."""

    def readable(self) -> bool:
        """Always false."""
        return False

    def writable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always false."""
        return False

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
