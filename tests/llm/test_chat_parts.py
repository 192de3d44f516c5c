"""Parts of the chat: which pictures a terminal is given, and lines of code as they grow."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.llm.terminal.screen import CodeLines, detect_protocol, picture_sequence

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
JPEG = b"\xff\xd8\xff" + bytes(range(256))


@pytest.mark.parametrize(
    ("marks", "protocol"),
    [
        ({}, "none"),
        ({"TERM": "xterm-256color"}, "none"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"KITTY_WINDOW_ID": "3"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"KITTY_WINDOW_ID": "3", "TMUX": "/tmp/x"}, "none"),
    ],
)
def test_a_terminal_is_known_by_its_environment(marks, protocol):
    """And a multiplexer in between is one that can show nothing."""
    assert detect_protocol(marks) == protocol


def test_kitty_gets_pieces():
    """Each at most as long as the protocol allows; together they are the file."""
    sequence = picture_sequence("kitty", PNG, "png")
    pieces = [part.removeprefix("\x1b_G") for part in sequence.strip().split("\x1b\\") if part]
    assert all(len(piece.partition(";")[2]) <= 4096 for piece in pieces)
    assert [piece.partition(";")[0] for piece in pieces] == ["a=T,f=100,q=2,m=1", "m=1", "m=1", "m=0"]
    assert base64.b64decode("".join(piece.partition(";")[2] for piece in pieces)) == PNG


@pytest.mark.parametrize(
    ("protocol", "content", "ending"),
    [
        ("none", PNG, "png"),
        ("kitty", JPEG, "jpg"),
        ("kitty", b"\x1b[2J not a picture", "png"),
        ("iterm2", PNG, "pdf"),
        ("iterm2", PNG + bytes(5_000_000), "png"),
        ("iterm2", PNG, "jpg"),
    ],
    ids=["no protocol", "no JPEG for kitty", "no picture", "a PDF", "too large", "wrong type"],
)
def test_what_cannot_be_shown_is_not_sent(protocol, content, ending):
    """The file is saved all the same."""
    assert picture_sequence(protocol, content, ending) == ""


@given(st.binary(max_size=200))
def test_a_picture_cannot_end_its_sequence(content):
    """Whatever its bytes are."""
    sequence = picture_sequence("iterm2", b"\xff\xd8\xff" + content, "jpg")
    assert sequence.count("\x1b") == 1
    assert sequence.count("\x07") == 1


@given(st.lists(st.text(alphabet="ab'\"\n #\\", max_size=8), max_size=12))
def test_lines_are_shown_once_and_all(pieces):
    """However the code is cut into pieces."""
    lines = CodeLines()
    shown = [str(line) for piece in pieces for line in lines.add(piece)]
    code = "".join(pieces)
    shown += [str(line) for line in lines.finish(code)]
    assert shown == code.splitlines()
