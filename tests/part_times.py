"""Prints at the end of each run what each part of the tests took: seconds, and how many of them a processor worked.

A part is a folder of tests. The seconds are those of the tests, with what they set up and tear down; where several
processes run tests at once they are more than the run took. Processor seconds are those of the test process and of the
children that it has waited for, so that what stays is waiting: for sandboxes, servers and deadlines. Sandboxes and
servers work as well, in processes that no test waits for: the last line says how busy the machine was with all of it.

It measures and prints; it never changes the outcome of a test.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

_FILES_SHOWN = 12
_TABLE = "{:<44} {:>6} {:>8} {:>8} {:>8} {:>8}"


@dataclass
class _Sum:
    """The seconds of one part or file, by phase."""

    tests: set[str] = field(default_factory=set)
    phases: Counter[str] = field(default_factory=Counter)
    processor: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    def add(self, report: pytest.TestReport) -> None:
        self.tests.add(report.nodeid)
        self.phases[report.when or ""] += report.duration
        self.processor += getattr(report, "processor_seconds", 0.0)

    def row(self, name: str) -> str:
        shared = self.phases["setup"] + self.phases["teardown"]
        waiting = max(0.0, self.seconds - self.processor)
        figures = (self.seconds, self.processor, waiting, shared)
        return _TABLE.format(name, len(self.tests), *(f"{figure:.1f}" for figure in figures))


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _machine_seconds() -> float:
    """What all processors of this machine have worked, for whatever program."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])

    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


class PartTimes:
    """The plugin: workers measure, the process that the user started adds up and prints."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._files: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._measured = _processor_seconds()
        self._begun, self._worked = time.monotonic(), _machine_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the report of a phase the processor time since the report before it."""
        report = yield
        now = _processor_seconds()
        report.processor_seconds = now - self._measured
        self._measured = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test, wherever it ran."""
        path = report.nodeid.partition("::")[0]
        folders = path.split("/")[1:-1]
        self._parts["/".join(folders[:2] if folders[:1] == ["dialects"] else folders[:1])].add(report)
        self._files[path].add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, when more than one file was run."""
        if len(self._files) < 2:
            return

        slowest = sorted(self._files.items(), key=lambda item: item[1].seconds, reverse=True)[:_FILES_SHOWN]
        terminalreporter.section("time of each part")
        terminalreporter.line(_TABLE.format("seconds of", "tests", "all", "CPU", "waiting", "fixtures"))

        for name, spent in sorted(self._parts.items()):
            terminalreporter.line(spent.row(f"tests/{name}"))

        terminalreporter.line("the slowest files:")

        for name, spent in slowest:
            terminalreporter.line(spent.row(name.removeprefix("tests/")))

        there = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        worked = _machine_seconds() - self._worked
        terminalreporter.line(f"processors of this machine: {worked:.0f} of {there:.0f} seconds at work")
