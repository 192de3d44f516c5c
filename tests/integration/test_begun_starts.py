"""A start that was begun before it is asked for: it is used once, by what it was begun for, and never left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fumehood import Template
from fumehood.portal import call
from fumehood.runtimes.namespaces.runtime import LinuxRuntime

BARE = Template(name="begun", preload=())


def _children() -> set[int]:
    # Any of its threads may have started them.
    lists = (Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task"))
    return {int(pid) for each in lists for pid in each.split()}


@pytest.fixture
def launchers() -> Iterator[Callable[[], set[int]]]:
    """The launchers that a test has started and that live; afterwards there must be none."""
    before = _children()
    yield lambda: _children() - before
    assert _children() <= before


def test_a_begun_start_is_the_one_that_is_used(launchers):
    """The processes that are there already serve the template, and no others are started."""
    runtime = LinuxRuntime()
    call(runtime.begin, BARE)
    begun = launchers()
    spawner = call(runtime.start, BARE)
    try:
        assert len(begun) == 1
        assert launchers() == begun
    finally:
        call(spawner.aclose)

    call(runtime.end_begun)


def test_a_begun_start_of_another_template_ends(launchers):
    """It serves nothing else, and is gone before the runtime is."""
    runtime = LinuxRuntime()
    call(runtime.begin, BARE)
    begun = launchers()
    spawner = call(runtime.start, Template(name="other", preload=()))
    try:
        assert not launchers() & begun
    finally:
        call(spawner.aclose)


def test_a_begun_start_that_nothing_asks_for_ends(launchers):
    """As when the arguments of the sandbox are wrong: with the engine's loop its processes end."""
    runtime = LinuxRuntime()
    call(runtime.begin, BARE)
    assert len(launchers()) == 1

    call(runtime.end_begun)
    call(runtime.end_begun)
    assert launchers() == set()
