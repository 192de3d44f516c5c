"""Control characters are spelled out wherever guest text is shown."""

from __future__ import annotations

import errno
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from fumehood.text import errno_text, visible, visible_line


def test_escapes_are_spelled_out():
    """Nothing that a terminal acts on is left."""
    assert visible("\x1b[31mred\x07\x9b2J\x7f\u202e") == "\\x1b[31mred\\x07\\x9b2J\\x7f\\u202e"


def test_ordinary_text_is_left_alone():
    """Lines, tabs and scripts of any kind read as they were written."""
    text = "a\tb\nhäß 漢字 \U0001f9ea\n"
    assert visible(text) == text
    assert visible("line\r\nline\r\n") == "line\nline\n"


@given(st.text(alphabet=st.characters()))
def test_no_control_character_is_left(text):
    """Of all control characters only newline and tab pass, and everything can be encoded."""
    shown = visible(text)
    assert all(unicodedata.category(char) not in ("Cc", "Cs") or char in "\n\t" for char in shown)
    assert shown.encode().decode() == shown


@given(st.text(alphabet=st.characters()), st.integers(1, 50))
def test_a_line_is_one_bounded_line(text, size):
    """A name or message never spans lines and never fills the screen."""
    line = visible_line(text, max_characters=size)
    assert len(line) <= size
    assert len(line.splitlines()) <= 1


def test_a_file_that_is_no_text_is_said_to_be_none():
    """The C library speaks of wide characters, which nobody has asked for."""
    assert errno_text(errno.EILSEQ) == "its bytes are no text in UTF-8"
    assert errno_text(errno.ENOENT) == "No such file or directory"
    assert errno_text(99999) == "error 99999"
