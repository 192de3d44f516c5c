"""What the command line shows at a terminal, and what elsewhere."""

from __future__ import annotations

import io

import pytest

from fumehood.cli.terminal import reported_steps


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_steps_are_reported_with_their_time(kind, monkeypatch):
    """At a terminal a bar moves beside the step that is under way; elsewhere there are lines alone."""
    stream = kind()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    with reported_steps() as say:
        say("making an environment")
        say("installing [red]\x1b[2J")

    lines = stream.getvalue()
    assert "s  making an environment\n" in lines
    assert "s  installing [red]\\x1b[2J\n" in lines
    assert ("\x1b[" in lines) == (kind is Terminal)
    assert ("\u2501" in lines) == (kind is Terminal)
