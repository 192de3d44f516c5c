"""Code, highlighted while a model still writes it: a line is shown once it is complete.

Runs in the user's terminal; no input or output. A line is highlighted together with the lines before it, because a text
over several lines changes the meaning of a line.
"""

from __future__ import annotations

from rich.syntax import Syntax
from rich.text import Text

from fumehood.text import visible

# Highlighting everything again for each line is quadratic: longer code is shown plainly.
_MAX_CHARS = 20_000


class CodeLines:
    """The code of one call."""

    def __init__(self) -> None:
        self._code = ""
        self._shown_lines = 0
        self._syntax = Syntax("", "python", theme="ansi_dark", background_color="default")

    def add(self, text: str) -> list[Text]:
        """Take a piece and return the lines that are complete now."""
        self._code += text
        return self._lines(self._code.count("\n")) if "\n" in text else []

    def finish(self, code: str) -> list[Text]:
        """Return the rest of the complete code."""
        self._code = code if code.startswith(self._code) else self._code
        return self._lines(len(self._code.splitlines()))

    def _lines(self, count: int) -> list[Text]:
        shown = visible(self._code)
        text = self._syntax.highlight(shown) if len(shown) <= _MAX_CHARS else Text(shown)
        lines = list(text.split("\n", allow_blank=True))[self._shown_lines : count]
        self._shown_lines = max(count, self._shown_lines)
        return lines
