"""Line editing at a prompt: a stored history, and completion by Tab, for which the sandbox is asked.

Runs in the user's terminal, where this Python has readline; without it, or without a terminal, lines are read as they
come. Names that a guest offers are shown only if they are printable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fumehood.cli.terminal import note
from fumehood.errors import FumehoodError

if TYPE_CHECKING:
    from fumehood.values.questions import CodeCompletion

# Returns completions at a cursor in a piece of code.
AskForNames = Callable[[str, int], "CodeCompletion"]

_HISTORY_LINES = 10_000
_INDENT = "    "
# Characters that separate words; names with dots and strings stay whole.
_DELIMITERS = " \t\n()[]{},;:=+-*/<>|&!@#%^~`"


@contextmanager
def line_editing(history: str, before: Callable[[], str], ask: AskForNames) -> Iterator[None]:
    """Edit lines with history and completion in the block.

    Args:
        history: The file where lines are kept.
        before: Returns the earlier lines of the piece of code that is being edited.
        ask: Returns completions at the cursor.
    """
    try:
        import readline
    except ImportError:
        yield
        return

    if not sys.stdin.isatty():
        yield
        return

    completer = _Completer(before, ask)
    readline.set_completer(completer.complete)
    readline.set_completer_delims(_DELIMITERS)
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_HISTORY_LINES)
    _read_history(history)

    try:
        yield
    finally:
        readline.set_completer(None)
        _write_history(history)


class _Completer:
    """The completer of readline, which calls it for one candidate after another."""

    def __init__(self, before: Callable[[], str], ask: AskForNames) -> None:
        self._before = before
        self._ask = ask
        self._candidates: list[str] = []

    def complete(self, word: str, state: int) -> str | None:
        """Return the candidate of this number, or None after the last."""
        import readline

        if state == 0:
            line, begin, end = readline.get_line_buffer(), readline.get_begidx(), readline.get_endidx()
            self._candidates = self._names(line, begin, end) if line[:end].strip() else [word + _INDENT]

        return self._candidates[state] if state < len(self._candidates) else None

    def _names(self, line: str, begin: int, end: int) -> list[str]:
        before = self._before()
        try:
            found = self._ask(before + line, len(before) + end)
        except (FumehoodError, OSError):
            return []

        # readline replaces from `begin`, the sandbox from where its names begin.
        start = found.start - len(before)
        kept = line[begin:start] if start >= begin else ""
        cut = max(0, begin - start)
        return [kept + name[cut:] for name in found.matches if name.isprintable()]


def _read_history(path: str) -> None:
    import readline

    try:
        readline.read_history_file(path)
    except OSError:
        # There is none yet, or it cannot be read: then nothing is remembered.
        return


def _write_history(path: str) -> None:
    import readline

    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Made first, so that others never can read it.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        readline.write_history_file(path)
    except OSError as error:
        note(f"the lines typed are not remembered: {path}: {error.strerror}")
