"""Text of a guest made readable for a model: bounded, with the omitted part counted.

Pure functions. Control characters are escaped, because a model reads hidden text as well as any other; a cut always
says how much.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fumehood.text import visible

_FENCE = "```"

# Colours and the like (ECMA-48, Select Graphic Rendition) carry no text.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
# The share of a shortened text that is its head; errors and totals stand at the end.
_HEAD_SHARE = 0.6
_MARK_CHARS = 60
# Lines of one warning.
_MAX_GROUP = 3
# Shorter texts are always made readable as a whole.
_MIN_SIDE_CHARS = 64 * 1024


def readable(text: str) -> str:
    """Return a guest's text as a terminal would show it, with every hidden character escaped."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)

    if "\r" in text:
        text = "\n".join(map(_last_state, text.split("\n")))

    return visible(text)


def fold_repeats(text: str) -> str:
    """Return a text in which repeated lines, or groups of up to three, are replaced by a count."""
    lines = text.split("\n")
    folded: list[str] = []
    at = 0

    while at < len(lines):
        size = next(
            (n for n in range(1, _MAX_GROUP + 1) if lines[at : at + n] == lines[at + n : at + 2 * n]), 0
        )
        folded += lines[at : at + max(size, 1)]
        times = 0

        while size and lines[at : at + size] == lines[at + size : at + 2 * size]:
            at += size
            times += 1

        if times:
            folded.append(f"[the same {times:,} more {'time' if times == 1 else 'times'}]")

        at += max(size, 1)

    return "\n".join(folded)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A readable text whose middle may be missing.

    Attributes:
        head: Its beginning, or all of it.
        left_out: How many characters of the original are missing after that.
        tail: Its end, if something is missing.
    """

    head: str
    left_out: int = 0
    tail: str = ""

    def __len__(self) -> int:
        return len(self.head) + len(self.tail)


def readable_ends(text: str, max_chars: int) -> Excerpt:
    """Return a guest's text made readable; of a very long one only its two ends, so that the work is bounded."""
    side = max(max_chars, _MIN_SIDE_CHARS)

    if len(text) <= 2 * side:
        return Excerpt(readable(text))

    return Excerpt(readable(text[:side]), len(text) - 2 * side, readable(text[-side:]))


def shorten(text: str | Excerpt, max_chars: int) -> str:
    """Return a text, or its head and its tail with the number of characters that are left out between them."""
    whole = text if isinstance(text, Excerpt) else Excerpt(text)

    if len(whole) <= max_chars and not whole.left_out:
        return whole.head

    room = max(max_chars - _MARK_CHARS, 2)
    head_room = int(room * _HEAD_SHARE)
    head, tail = whole.head[:head_room], (whole.tail or whole.head)[-(room - head_room) :]
    head, tail = _whole_lines(head, tail)
    return (
        f"{head}\n... {whole.left_out + len(whole) - len(head) - len(tail):,} characters left out ...\n{tail}"
    )


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divide `room` among texts of these sizes: short ones get all they need, long ones the same each."""
    shares = [0] * len(sizes)
    left = room

    for place, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], left // (len(sizes) - place))
        left -= shares[index]

    return shares


def counted(number: int, word: str) -> str:
    """Return a number with its word, such as `1 row` or `2,000 rows`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def in_bytes(size: int) -> str:
    """Return a number of bytes in a readable unit."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f}".removesuffix(".0") + f" {unit}"

    return counted(size, "byte")


def _last_state(line: str) -> str:
    """Return a line as a terminal shows it in the end: progress bars overwrite theirs again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


def _whole_lines(head: str, tail: str) -> tuple[str, str]:
    """Cut at the ends of lines where that costs little."""
    cut = head.rfind("\n")

    if cut > len(head) * 0.8:
        head = head[:cut]

    cut = tail.find("\n")

    if 0 <= cut < len(tail) * 0.2:
        tail = tail[cut + 1 :]

    return head, tail


def unfenced(code: str) -> str:
    """Return the content of code that is one whole fenced block, and other code unchanged."""
    whole = code.strip()
    first, _, rest = whole.partition("\n")

    if not first.startswith(_FENCE) or not rest.endswith(_FENCE) or _FENCE in first[len(_FENCE) :]:
        return code

    return rest[: -len(_FENCE)]
