"""The user's terminal: guest text made harmless, and a word when something takes long.

Runs in the user's terminal. Guest text is written through `Screen` and through nothing else, so that no
escape sequence of a guest reaches the terminal unless the user asked for it with `--raw`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from fumehood.cli.colours import write_traceback
from fumehood.text import head_and_tail, visible, visible_line

# A shorter wait needs no message.
_PATIENCE_SECONDS = 1.0
# Of a result or a traceback at a terminal: more pages than this push everything else out of sight.
MAX_SHOWN_CHARACTERS = 10_000
# PATH_MAX of Linux, and what spelling out its bytes adds.
_MAX_PATH_CHARACTERS = 16_384


class Screen:
    """Writes a guest's text as it comes.

    Args:
        raw: Pass everything on as it is; the guest then controls the terminal.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self._raw = raw

    def out(self, text: str) -> None:
        """Write to standard output."""
        self._write(sys.stdout, text)

    def err(self, text: str) -> None:
        """Write to standard error."""
        self._write(sys.stderr, text)

    def result(self, text: str) -> None:
        """Write a result to standard output; at a terminal, of a very long one its two ends."""
        self.out(text if self._raw else fit_for(sys.stdout, text))

    def traceback(self, text: str) -> None:
        """Write a traceback to standard error, in colours where they are shown; at a terminal as a result."""
        if self._raw:
            self.err(text)
        else:
            write_traceback(self.shown(fit_for(sys.stderr, text)), sys.stderr)

    def note(self, text: str) -> None:
        """Say something of ours about what the guest did."""
        note(text)

    def shown(self, text: str) -> str:
        """Return a guest's text as it is written."""
        # A lone carriage return would overwrite the line; progress bars use it, and read well line by line.
        return text if self._raw else visible(text.replace("\r\n", "\n").replace("\r", "\n"))

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(self.shown(text).encode("utf-8", "replace").decode())
        stream.flush()


def fit_for(stream: TextIO, text: str) -> str:
    """Return a text for a stream: at a terminal, of a very long one its two ends; otherwise all of it."""
    return head_and_tail(text, MAX_SHOWN_CHARACTERS) if stream.isatty() else text


def note(text: str) -> None:
    """Say something that is not data: on standard error, controls spelled out."""
    print(f"fumehood: {visible(text)}", file=sys.stderr, flush=True)


def line_of_path(path: str) -> str:
    """Return a path of a guest's choosing as one line: a line end in a name would begin another note."""
    return visible_line(path, max_characters=_MAX_PATH_CHARACTERS)


def counted(count: int, one: str, many: str = "") -> str:
    """Return how many there are, in words that fit: "1 file", "2,000 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say `what` goes on if the block takes longer than a second, and how long it took when it ends."""
    started = time.monotonic()
    timer = threading.Timer(_PATIENCE_SECONDS, note, (f"{what} ...",))
    timer.daemon = True
    timer.start()

    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        taken_seconds = time.monotonic() - started

        if taken_seconds > _PATIENCE_SECONDS:
            note(f"{what}: {taken_seconds:.1f} s")
