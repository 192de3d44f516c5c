"""A sandbox that keeps the processors busy has a small share of them, until it is quiet again; others keep theirs."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from tests.waiting import until

from fumehood import Sandbox
from fumehood.runtimes import linux_courtesy

# More than there are processors, so that somebody waits for one.
BURN = "for n in $(seq {count}); do (while :; do :; done) & done; wait"


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks often, and forgives soon."""
    monkeypatch.setattr(linux_courtesy, "_CALM_SECONDS", 0.1)
    monkeypatch.setattr(linux_courtesy, "_PRESSED_SECONDS", 0.1)
    monkeypatch.setattr(linux_courtesy, "_REST_SECONDS", 0.3)


def share_of(sandbox: Sandbox) -> int:
    """What it has of the processors where others want them too."""
    for name in ("cpu.shares", "cpu.weight"):
        for path in glob.glob(f"/sys/fs/cgroup/**/*{sandbox.id}*/{name}", recursive=True):
            return int(Path(path).read_text())

    pytest.skip("needs a control group for the processors that can be written")


def test_who_takes_much_makes_way_and_has_its_share_back_afterwards() -> None:
    """By what the kernel says; the control is a sandbox beside it that does little."""
    with Sandbox() as busy, Sandbox() as other:
        whole = share_of(busy)
        assert whole == share_of(other)
        burning = busy.commands.run(
            BURN.format(count=2 * (os.cpu_count() or 1)), background=True, timeout=None
        )
        until(lambda: share_of(busy) == whole // 8)
        assert other.run_code("6 * 7").text == "42"
        assert share_of(other) == whole
        assert busy.run_code("6 * 7").text == "42"
        burning.kill()
        until(lambda: share_of(busy) == whole)
