"""Names in letters that look like others: `сору` in Cyrillic is not `copy`.

Pure functions. Greek letters in formulas are ordinary, as are names in one's own language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Letters that most fonts draw as a Latin one.
_LIKE_LATIN = frozenset("аеорсухіѕјԁһӏԛԝցոսАВЕКМНОРСТУХІЅЈԌԚԜονΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳ")
_WORD = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"[^\W\d]\w*")


def lookalike(name: str) -> str:
    """Return why a name may be taken for another one; an empty text if it may not."""
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
    """Yield names that Python reads as other ones in plain letters, each with its place."""
    if code.isascii():
        return

    for match in _NAME.finditer(code):
        name = match[0]

        if name.isascii():
            continue

        plain = unicodedata.normalize("NFKC", name)

        if plain.isascii() and sum(not letter.isascii() for letter in name) >= 2:
            yield plain, match.start()
