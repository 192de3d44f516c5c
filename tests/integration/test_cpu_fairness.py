"""A long computation has half of its CPU weight while another tenant makes short requests, else all of it."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import until

from fumehood import Sandbox
from fumehood.engine import cpu_fairness

# More processes than processors, so that some of them wait for one.
BURN = "for n in $(seq {count}); do (while :; do :; done) & done; wait"


@pytest.fixture(autouse=True)
def _short_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are restored soon."""
    monkeypatch.setattr(cpu_fairness, "_HOLD_SECONDS", 0.5)
    monkeypatch.setattr(cpu_fairness, "_RESTORE_INTERVAL_SECONDS", 0.1)


def weight_of(sandbox: Sandbox) -> int:
    """Return the CPU weight that the kernel holds for the sandbox."""
    for name in ("cpu.shares", "cpu.weight"):
        for path in glob.glob(f"/sys/fs/cgroup/**/*{sandbox.id}*/{name}", recursive=True):
            return int(Path(path).read_text())

    pytest.skip("needs a control group for the processors that can be written")


@contextmanager
def requests_to(sandbox: Sandbox) -> Iterator[None]:
    """Make short requests to it, one after another, until the block is left."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            assert sandbox.run_code("6 * 7").text == "42"

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_long_computation_is_halved_only_while_another_tenant_makes_short_requests() -> None:
    """By the weights that the kernel holds; the controls are the sandbox with short requests, and the quiet before."""
    with Sandbox() as busy, Sandbox() as other:
        full = weight_of(busy)
        assert weight_of(other) == full
        burn = BURN.format(count=2 * (os.cpu_count() or 1))
        burning = busy.commands.run(burn, background=True, timeout=None)
        assert weight_of(busy) == full

        with requests_to(other):
            until(lambda: weight_of(busy) == full // 2)
            assert weight_of(other) == full
            assert busy.run_code("6 * 7").text == "42"

        # It still computes; nobody asks any more.
        until(lambda: weight_of(busy) == full)
        burning.kill()


def test_a_long_computation_alone_keeps_its_weight() -> None:
    """Its own requests, however many, are no reason to halve it, nor are idle sandboxes beside it."""
    with Sandbox() as busy, Sandbox():
        full = weight_of(busy)
        burn = BURN.format(count=2 * (os.cpu_count() or 1))
        burning = busy.commands.run(burn, background=True, timeout=None)

        def ask() -> bool:
            busy.run_code("sum(range(100_000))")
            return weight_of(busy) == full

        # The creation of the other one counted as a short request for a while.
        until(lambda: all(ask() for _ in range(30)))
        burning.kill()
