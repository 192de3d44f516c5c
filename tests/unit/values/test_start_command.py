"""The text of a ready check: what it means, and what is refused before anything is built."""

from __future__ import annotations

import pytest

from fumehood import InvalidArgumentError, StartCommand
from fumehood.values.start_command import ReadyCheck, read_start


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("port:8000", ReadyCheck(kind="port", port=8000)),
        ("url:http://localhost:8000/health?deep=1", ReadyCheck(kind="url", port=8000, text="/health?deep=1")),
        ("url:http://127.0.0.1", ReadyCheck(kind="url", port=80, text="/")),
        ("file:/tmp/a b", ReadyCheck(kind="file", text="/tmp/a b")),
        ("command:test -e x: && true", ReadyCheck(kind="command", text="test -e x: && true")),
        ("", None),
    ],
)
def test_a_check_is_one_text(text, check):
    """The kind comes first; the rest may have colons of its own."""
    assert StartCommand(command="serve", ready=text).check() == check


@pytest.mark.parametrize(
    "text",
    [
        "8000", "port:", "port:0", "port:65536", "port:²", f"port:{'9' * 9000}", "file:relative", "command:",
        "url:https://localhost:1/", "url:http://example.org/", "url:http://localhost:x/",
        "url:http://localhost:99999/", "url:http://localhost/ HTTP/1.1\r\nX: y", "file:/a\0b", "dns:example.org", 7,
    ],
)  # fmt: skip
def test_another_text_is_refused(text):
    """The host asks a sandbox nothing that the caller of the build has not plainly said."""
    with pytest.raises(InvalidArgumentError, match="ready"):
        StartCommand(command="serve", ready=text)


def test_the_parts_go_together():
    """A check without a command, an empty command and an endless wait are mistakes."""
    assert read_start(None) is None

    with pytest.raises(InvalidArgumentError, match="without a start command"):
        read_start(None, "port:80")

    for wrong in ({"command": ""}, {"command": "a\0b"}, {"command": "a", "ready_seconds": float("inf")}):
        with pytest.raises(InvalidArgumentError):
            StartCommand(**wrong)
