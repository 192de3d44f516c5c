"""What a kernel sends after it has reported the end of a cell, by a clock that each message advances."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fumehood_guest.context import kernel


class _Kernel(kernel.KernelShell):
    """Sends a message every 50 ms, without end."""

    def __init__(self, parent):
        self.now = 0.0
        self.shown = []
        self._parent = parent

    def _next(self, deadline):
        assert self.now < 10, "it goes on without end"

        if self.now + 0.05 >= deadline:
            self.now = deadline
            return None

        self.now += 0.05
        return "iopub", "stream", self._parent, {"text": "1"}

    def _take(self, kind, content):
        self.shown.append(content["text"])


@pytest.mark.parametrize(("parent", "seconds", "shown"), [("asked", 1.0, 19), ("another", 0.1, 0)])
def test_a_timer_that_shows_something_does_not_keep_a_cell_running(monkeypatch, parent, seconds, shown):
    """What comes of other cells is not waited for."""
    one = _Kernel(parent)
    monkeypatch.setattr(kernel, "time", SimpleNamespace(monotonic=lambda: one.now))
    one._take_late("asked")
    assert one.now == pytest.approx(seconds)
    assert abs(len(one.shown) - shown) <= 1
