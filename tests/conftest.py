"""Settings of the whole test suite: under CI=true nothing is skipped in silence.

A test skipped because something is missing looks like one that passed. On a developer's machine that is a convenience,
in CI it is a hole. There a skip fails, unless its reason begins with one of the lines of CANNOT_EXIST_HERE: each names
what a kind of machine cannot have and no installation step could bring.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

CANNOT_EXIST_HERE = (
    "needs cgroup v1",
    "needs cgroup v2",
    "needs arm64",
    "needs x86-64",
    "needs Landlock ABI",
    "needs root",
    "needs an ordinary user",
)


def _fail_a_refused_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return

    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")

    if not reason.startswith(CANNOT_EXIST_HERE):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped under CI=true, and the reason is not on the list of tests/conftest.py: {reason}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skipped itself for a component CI should have."""
    report = yield
    _fail_a_refused_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a whole module that skipped itself for a component CI should have."""
    report = yield
    _fail_a_refused_skip(report)
    return report
