"""Control characters and hidden ones made visible, for every text of a guest that may reach a terminal or a message.

Guest text is hostile: an escape sequence can rewrite what the reader believes to see, so it is shown as text and
never sent on. Only newline and tab pass. Characters without a shape can carry hidden text; they pass only
where a script or an emoji is written with them. This module never removes a character, it only spells it out.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata

# Bidirectional overrides and isolates (Unicode UAX 9): they reorder what follows, which hides code from a
# reader.
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

_VISIBLE = {
    # C0 controls and DEL, but for tab and newline (ECMA-48).
    **{point: f"\\x{point:02x}" for point in (*range(0x20), 0x7F) if point not in (0x09, 0x0A)},
    # C1 controls: a terminal in an 8-bit mode takes 0x9b for ESC [.
    **{point: f"\\x{point:02x}" for point in range(0x80, 0xA0)},
    **{point: f"\\u{point:04x}" for point in (*_BIDIRECTIONAL, 0x2028, 0x2029)},
    # Lone surrogates cannot be encoded, so they cannot be printed either.
    **{point: f"\\u{point:04x}" for point in range(0xD800, 0xE000)},
}

# Invisible characters (default ignorable code points of Unicode, and the blank letters of Hangul): soft hyphen,
# grapheme joiner, zero-width ones, invisible operators, variation selectors, annotations, music, tags.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_JOINERS = "\u200c\u200d"
_KEYCAP = "\u20e3"
# The three flags that are written with tags (Unicode UTS 51, RGI): England, Scotland, Wales.
_BLACK_FLAG = "\U0001f3f4"
_FLAGS = frozenset(
    "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
# Scripts whose letters change their shape at a joiner: Arabic to Myanmar, Khmer, Mongolian, Brahmic ones further up.
_JOINING = ((0x0600, 0x2000), (0xA800, 0xAC00), (0xFB50, 0xFE00), (0x10800, 0x12000))
_FIRST_IDEOGRAPH = 0x2E80


def visible(text: str) -> str:
    r"""Return `text` with each control and hidden character but newline and tab written out, such as `\x1b`.

    A carriage return before a newline is part of the line's end and is dropped with it; alone it would
    overwrite the line.
    """
    shown = text.replace("\r\n", "\n").translate(_VISIBLE)
    return shown if shown.isascii() else _HIDDEN.sub(_spell_out, shown)


def _spell_out(found: re.Match[str]) -> str:
    """Returns a run of hidden characters as it is where it is part of a letter or an emoji, otherwise written out."""
    run, text = found[0], found.string
    before = text[found.start() - 1] if found.start() else ""
    after = text[found.end() : found.end() + 1]

    if before == _BLACK_FLAG and run in _FLAGS:
        return run

    rest = run[1:] if before and _is_chosen(before, run[0], after) else run

    if not rest or (len(rest) == 1 and rest in _JOINERS and _are_joined(before, rest, after)):
        return run

    return "".join(f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}" for one in run)


def _is_chosen(before: str, selector: str, after: str) -> bool:
    """Returns whether a variation selector is defined for the character before it."""
    point = ord(selector)
    kind = unicodedata.category(before)

    if point in (0xFE0E, 0xFE0F):
        return after == _KEYCAP or _is_emoji(before) or (not before.isascii() and kind in ("Sm", "Po", "Pd"))

    if 0xFE00 <= point <= 0xFE02:
        return not before.isascii() and kind in ("Sm", "Lo")

    return 0xE0100 <= point <= 0xE01EF and ord(before) >= _FIRST_IDEOGRAPH and kind == "Lo"


def _are_joined(before: str, joiner: str, after: str) -> bool:
    """Returns whether a joiner is part of a word in a script that uses it, or between two emoji."""
    if not before:
        return False

    if any(first <= ord(before) < end for first, end in _JOINING):
        return unicodedata.category(before) in ("Lo", "Lm", "Mn", "Mc")

    return joiner == "\u200d" and _is_emoji(before) and bool(after) and _is_emoji(after)


def _is_emoji(character: str) -> bool:
    return 0x1F000 <= ord(character) < 0x1FB00 or unicodedata.category(character) == "So"


def visible_line(text: str, *, max_characters: int = 200) -> str:
    r"""Return `text` as one bounded line without controls, fit for a message, a name or a table cell."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")

    return shortened(line, max_characters)


def shortened(text: str, max_characters: int) -> str:
    """Return `text`; if it has more than `max_characters`, its head with an ellipsis."""
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def head_and_tail(text: str, max_characters: int) -> str:
    """Return `text`; if it has more than `max_characters`, its two ends and the length of the omitted middle."""
    if len(text) <= max_characters:
        return text

    side = max_characters // 2
    return f"{text[:side]}\n... {len(text) - 2 * side:,} characters left out ...\n{text[-side:]}"


def errno_text(number: int) -> str:
    """Return our own words for an error number, which a guest may have made up."""
    if number == errno.EILSEQ:
        return "its bytes are no text in UTF-8"

    return os.strerror(number) if number in errno.errorcode else f"error {number}"
