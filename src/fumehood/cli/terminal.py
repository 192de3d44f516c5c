"""The user's terminal: guest text made harmless, colours, tables and bars, and a note when work takes long.

Guest text is written through `Screen` and through nothing else, so that no escape sequence of a guest reaches the
terminal unless the user asked for it with `--raw`; text that looks like markup of rich stays as it is. Without rich,
with `NO_COLOR` or with `TERM=dumb`, all is plain text.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TextIO

from fumehood.text import head_and_tail, visible, visible_line

if TYPE_CHECKING:
    from rich.console import Console


# The widths of the bar beside a step and of the step's text.
_STEPS_WIDTH = 20
_STEP_CHARACTERS = 60
# The lines of a traceback that are highlighted.
_STYLES = {
    r"(?m)^-{75}$": "dim",
    r"(?m)^(File|Cell) .+": "cyan",
    r"(?m)^-+> \d+.*$": "bold",
    r"(?m)^[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt|Group|Exceeded|Died|Ended|Memory|Interrupted)\b": (
        "bold red"
    ),
    r"(?m)^ +\d+ ": "dim",
}


def has_colours(stream: TextIO) -> bool:
    """Return whether colours may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console_of(stream: TextIO) -> Console | None:
    """Return rich's console for a stream, or None where text is to be plain."""
    if not has_colours(stream) or importlib.util.find_spec("rich") is None:
        return None

    # Imported late: only a terminal needs it.
    from rich.console import Console

    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(stream: TextIO, what: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar while the block runs, where colours are shown; yields a function that adds to the amount done.

    Args:
        stream: The stream on which the bar is shown.
        what: The word in front of the bar.
        total: The total amount; None if it is not known.
    """
    console = console_of(stream)

    if console is None:
        yield lambda _: None
        return

    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (what, BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())

    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def reported_steps() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a step and the time since the start; at a terminal, a bar moves meanwhile."""
    started = time.monotonic()

    def say(step: str) -> None:
        note(f"{time.monotonic() - started:5.1f} s  {step}")

    if (console := console_of(sys.stderr)) is None:
        yield say
        return

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(_STEPS_WIDTH), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))

    # It is erased at the end, and what is said meanwhile stands above it.
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say_and_show(step: str) -> None:
            say(step)
            bar.update(task, description=visible_line(step, max_characters=_STEP_CHARACTERS))

        yield say_and_show


class CountedReader:
    """A file that is read with a progress bar.

    Args:
        file: The open file.
        step: Called with the number of bytes read, to advance the bar.
    """

    def __init__(self, file: BinaryIO, step: Callable[[float], None]) -> None:
        self._file = file
        self._step = step

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        piece = self._file.read(size)
        self._step(len(piece))
        return piece


def write_traceback(text: str, stream: TextIO) -> None:
    """Write a traceback that has been made visible."""
    console = console_of(stream)

    if console is None:
        stream.write(text)
    else:
        from rich.text import Text

        shown = Text(text)

        for pattern, style in _STYLES.items():
            shown.highlight_regex(pattern, style)

        console.print(shown, end="")

    stream.flush()


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Write rows of visible text in columns under a head."""
    console = console_of(stream)

    if console is None:
        lines = [head, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            stream.write("  ".join(cells).rstrip() + "\n")
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(*head, box=None, pad_edge=False, header_style="bold")

        for row in rows:
            table.add_row(*map(Text, row))

        console.print(table)

    stream.flush()


# A shorter wait needs no message.
_PATIENCE_SECONDS = 1.0
# The most characters of a result or a traceback at a terminal: more would push everything else out of sight.
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
        """Write a result to standard output; at a terminal, only both ends of a very long result."""
        self.out(text if self._raw else fit_for(sys.stdout, text))

    def traceback(self, text: str) -> None:
        """Write a traceback to standard error, in colours where they are shown; at a terminal as a result."""
        if self._raw:
            self.err(text)
        else:
            write_traceback(self.shown(fit_for(sys.stderr, text)), sys.stderr)

    def note(self, text: str) -> None:
        """Print a message of fumehood, marked as such, to standard error."""
        note(text)

    def shown(self, text: str) -> str:
        """Return a guest's text in the form in which it is written."""
        # A lone carriage return would overwrite the line; progress bars use it, and read well line by line.
        return text if self._raw else visible(text.replace("\r\n", "\n").replace("\r", "\n"))

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(self.shown(text).encode("utf-8", "replace").decode())
        stream.flush()


def fit_for(stream: TextIO, text: str) -> str:
    """Return a text for a stream: at a terminal, only both ends of a very long text; otherwise all of it."""
    return head_and_tail(text, MAX_SHOWN_CHARACTERS) if stream.isatty() else text


def note(text: str) -> None:
    """Print a message to standard error, with control characters escaped."""
    print(f"fumehood: {visible(text)}", file=sys.stderr, flush=True)


def line_of_path(path: str) -> str:
    """Return a path that a guest chose as one line, since a line break in a name could pass for another note."""
    return visible_line(path, max_characters=_MAX_PATH_CHARACTERS)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 file", "2,000 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Print `what` if the block takes longer than a second, and the elapsed time when it ends."""
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


@contextmanager
def waiting_for(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show that `what` is in progress: by a progress bar at a terminal that can show one, else as `patience` does.

    Args:
        what: The name of the activity.
        total: The total amount.
    """
    if console_of(sys.stderr) is None:
        with patience(what):
            yield lambda _: None
    else:
        with progress_bar(sys.stderr, what, total) as step:
            yield step
