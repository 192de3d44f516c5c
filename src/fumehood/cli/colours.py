"""Colours, tables and bars, where a terminal shows them and rich is installed; plain text everywhere else.

Runs in the user's terminal. Guest text is made visible before it gets here, and is coloured as text: what looks like
markup of rich in it stays as it is. `NO_COLOR` and `TERM=dumb` turn colours off.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Of tracebacks, the lines that matter.
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
    """Tell whether colours may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console_of(stream: TextIO) -> Console | None:
    """Return rich's console for a stream, or None where text is to be plain."""
    if not has_colours(stream) or importlib.util.find_spec("rich") is None:
        return None

    # Late: only a terminal needs it.
    from rich.console import Console

    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(stream: TextIO, what: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Show a bar while the block runs, where colours are shown; gives a function that adds to what is done.

    Args:
        stream: Where it is shown.
        what: The word in front of it.
        total: What there is to do; None: not known.
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
