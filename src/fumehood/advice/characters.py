"""Characters that deceive a reader: those that cannot be seen, and names in letters that look like others.

Pure functions. `fumehood.text` spells out controls and text direction; this module adds characters without a shape:
zero-width characters, variation selectors and the tags in which whole sentences can be hidden. `сору` in Cyrillic is
not `copy`; Greek letters in formulas are ordinary, as are names in one's own language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from fumehood.text import visible

_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_ZERO_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
)
_TAGS = "\U000e0000-\U000e0fff"
# A picture made of several characters is joined by, and styled with, one invisible character behind a visible one.
_PICTURES = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
# Tabs, line ends and form feeds are ordinary in code.
_CONTROLS = "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u2028\u2029"

_WITHOUT_SHAPE = re.compile(
    rf"(?<=[{_PICTURES}\ufe0f])\u200d(?=[{_PICTURES}])|(?<=[{_PICTURES}])\ufe0f|(?P<hidden>[{_ZERO_WIDTH}{_TAGS}])"
)
KINDS = {
    "text direction": re.compile(f"[{_DIRECTION}]"),
    "tag": re.compile(f"[{_TAGS}]"),
    "zero-width": re.compile(f"[{_ZERO_WIDTH}]"),
    "control": re.compile(rf"[{_CONTROLS}]|\r(?!\n)"),
}


def shown(text: str) -> str:
    r"""Return `text` with everything hidden written out, such as `\x1b`, `\u200b` or `\U000e0041`.

    The joiners and selectors within emoji stay.
    """
    seen = visible(text)
    return seen if seen.isascii() else _WITHOUT_SHAPE.sub(_spelled, seen)


def shown_line(text: str, *, max_characters: int) -> str:
    """Return `text` as one bounded line in which nothing is hidden."""
    # No character becomes shorter, so what lies beyond the bound is not needed.
    line = shown(text[: max_characters + 1]).replace("\n", "\\n").replace("\t", "\\t")

    if not line.isprintable():
        # Unassigned characters, private-use characters and unusual spaces.
        line = "".join(letter if letter.isprintable() else _spelled_point(letter) for letter in line)

    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def hidden_kinds(text: str) -> dict[str, int]:
    """Return the kinds of hidden characters in a text, each with the position of the first one."""
    kinds = {"control": KINDS["control"]} if text.isascii() else KINDS
    places = {kind: match.start() for kind, shape in kinds.items() if (match := shape.search(text))}

    if "zero-width" in places:
        found = next((match for match in _WITHOUT_SHAPE.finditer(text) if match["hidden"]), None)
        places.pop("zero-width")

        if found is not None and not KINDS["tag"].match(found[0]):
            places["zero-width"] = found.start()

    return places


def _spelled(match: re.Match[str]) -> str:
    return match[0] if match["hidden"] is None else _spelled_point(match[0])


def _spelled_point(letter: str) -> str:
    point = ord(letter)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


# Letters that most fonts draw as a Latin one.
_LIKE_LATIN = frozenset("аеорсухіѕјԁһӏԛԝցոսАВЕКМНОРСТУХІЅЈԌԚԜονΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳ")
_WORD = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"[^\W\d]\w*")


def lookalike(name: str) -> str:
    """Return why a name may be mistaken for another one; empty if it cannot be."""
    for word in _WORD.findall(name[:200]):
        if word.isascii():
            continue

        like = [letter for letter in word if letter in _LIKE_LATIN]
        has_latin = any(letter.isascii() for letter in word)
        is_cyrillic = any("\u0400" <= letter <= "\u052f" for letter in word)

        if has_latin and (like or is_cyrillic):
            return f"the name {name[:60]!a} mixes letters that look alike"

        if len(like) == len(word) >= 2:
            return f"the name {name[:60]!a} looks like one in Latin letters"

    return ""


def disguised_names(code: str) -> Iterator[tuple[str, int]]:
    """Yield names that Python normalizes to other names in plain letters, each with its position."""
    if code.isascii():
        return

    for match in _NAME.finditer(code):
        name = match[0]

        if name.isascii():
            continue

        plain = unicodedata.normalize("NFKC", name)

        if plain.isascii() and sum(not letter.isascii() for letter in name) >= 2:
            yield plain, match.start()
