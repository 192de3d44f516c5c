"""The text of HTML for a model: what a reader would see of it, without markup, scripts and styles.

Runs in the caller's process; pure. The HTML is the guest's: only its beginning is read, in time that grows with its
length. The answer is text for a model and never HTML again.
"""

from __future__ import annotations

import html
import re

# Text of a model's answer is shorter.
_MAX_CHARS = 32_000
_HIDDEN = re.compile(r"<(script|style|head)\b", re.IGNORECASE)
_LINE = re.compile(r"</?(?:p|div|br|li|tr|h[1-6]|table|ul|ol|pre|section)\b[^<>]*>", re.IGNORECASE)
_CELL = re.compile(r"</t[dh]\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")


def text_of_html(content: str) -> str:
    """Return the visible text of HTML, a line for each block or row; empty if there is none."""
    shown = _without_hidden(content[:_MAX_CHARS])
    shown = _LINE.sub("\n", shown)
    shown = _CELL.sub(" ", shown)
    shown = html.unescape(_TAG.sub("", shown))
    # A pattern with white space around a line's end would take time that grows with the square of a run of it.
    lines = (" ".join(line.split()) for line in shown.splitlines())
    return "\n".join(line for line in lines if line)


def _without_hidden(content: str) -> str:
    """Return HTML without the parts that a browser does not show; one that is not closed takes all that follows."""
    pieces: list[str] = []
    at = 0

    while (begun := _HIDDEN.search(content, at)) is not None:
        pieces.append(content[at : begun.start()])
        end = re.compile(f"</{begun[1]}\\b[^<>]*>", re.IGNORECASE).search(content, begun.end())

        if end is None:
            return "".join(pieces)

        at = end.end()

    return "".join([*pieces, content[at:]])
