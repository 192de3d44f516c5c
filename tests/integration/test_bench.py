"""Benchmarks that are interrupted: what was measured is told, without a traceback of whoever was at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("groups", "figures", "said"),
    [
        (["tools"], 0, "interrupted: nothing was measured"),
        (["tools", "creation"], 2, "interrupted: 2 figures were measured"),
    ],
    ids=["at once", "between groups"],
)
def test_ctrl_c_ends_with_what_there_is(groups, figures, said):
    """As on a terminal, where each process of the command hears of it at the same time."""
    words = [word for group in groups for word in ("--only", group)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "bench", "--quick", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told = ""

    while f"measuring: {groups[-1]} ..." not in told:
        told += process.stderr.readline()
        assert process.poll() is None, told

    os.killpg(process.pid, signal.SIGINT)
    # Returns when nobody has these pipes any more: nothing of it goes on.
    shown, rest = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in told + rest
    assert rest.splitlines() == [said]
    assert shown.count("call of a") == 2 * figures
