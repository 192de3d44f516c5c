"""Control characters made visible, for every text of a guest that may reach a terminal or a message.

Runs in the host process. Guest text is hostile: an escape sequence can rewrite what the reader believes to
see, so it is shown as text and never sent on. Only newline and tab pass; this module never removes a
character, it only spells it out.
"""

from __future__ import annotations

import errno
import os

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


def visible(text: str) -> str:
    r"""Return `text` with each control character but newline and tab written out, such as `\x1b`.

    A carriage return before a newline is part of the line's end and is dropped with it; alone it would
    overwrite the line.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def visible_line(text: str, *, max_characters: int = 200) -> str:
    r"""Return `text` as one bounded line without controls, fit for a message, a name or a table cell."""
    line = visible(text).replace("\n", "\\n").replace("\t", "\\t")

    if len(line) <= max_characters:
        return line

    return f"{line[: max_characters - 1]}…"


def errno_text(number: int) -> str:
    """Return our own words for an error number, which a guest may have made up."""
    if number == errno.EILSEQ:
        return "its bytes are no text in UTF-8"

    return os.strerror(number) if number in errno.errorcode else f"error {number}"
