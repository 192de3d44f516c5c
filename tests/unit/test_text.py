"""Control characters are spelled out wherever guest text is shown."""

from __future__ import annotations

import errno
import unicodedata

import pytest
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


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",  # Persian: two parts of a word that are not joined
        "क्\u200dष क्\u200cष",  # Devanagari: half forms
        "👩\u200d💻 👩🏽\u200d🚀 ❤\ufe0f\u200d🔥 🏳\ufe0f\u200d🌈 1\ufe0f\u20e3 ‼\ufe0f ✔\ufe0e",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # the flag of Scotland
        "葛\U000e0100 ∩\ufe00",
    ],
)
def test_scripts_and_emoji_that_are_written_with_hidden_characters_are_left_alone(text):
    """They read as they were written."""
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pass\u200bword", "pass\\u200bword"),
        ("a\u200cb\u200dc", "a\\u200cb\\u200dc"),
        ("\u2060\ufeff\u00ad\u3164\u180e", "\\u2060\\ufeff\\u00ad\\u3164\\u180e"),
        ("x\U000e0041\U000e0042", "x\\U000e0041\\U000e0042"),
        # Data behind an emoji, a letter or a flag.
        ("😀\ufe01\ufe0f\U000e0110", "😀\\ufe01\\ufe0f\\U000e0110"),
        ("a\ufe0f", "a\\ufe0f"),
        ("❤\ufe0f\ufe0f", "❤\\ufe0f\\ufe0f"),
        ("🏴\U000e0065\U000e0076\U000e007f", "🏴\\U000e0065\\U000e0076\\U000e007f"),
        ("می\u200c\u200dخ", "می\\u200c\\u200dخ"),
        ("👩\u200d x", "👩\\u200d x"),
    ],
)
def test_what_nobody_sees_is_spelled_out(text, shown):
    """Text could be hidden in it from who reads code or output."""
    assert visible(text) == shown


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
