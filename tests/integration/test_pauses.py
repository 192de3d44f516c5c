"""Pauses where it is hard: against processes that will not stop, without control groups, and when the host dies.

What the host processes do is in `pause_scenes.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.waiting import until

from fumehood import Metrics, Sandbox, failpoints
from fumehood.engine.sandbox import LiveSandbox

from . import census
from .launching import end, run_scene, start_scene


@pytest.mark.parametrize("ordinary", [False, True], ids=["as we are", "an ordinary user"])
def test_nobody_escapes_a_pause(ordinary: bool) -> None:
    """A chain of forks stands still, and so do processes that wake each other; afterwards they go on."""
    seen = run_scene("pause_scenes.paused_storm", ordinary=ordinary)
    freezer = seen.pop("freezer")

    assert seen == {"before": True, "paused": 1, "after": True, "kept": "42", "killed": False}

    if ordinary and os.geteuid() == 0:
        assert freezer == "degraded"


@pytest.mark.parametrize("ordinary", [False, True], ids=["as we are", "an ordinary user"])
def test_nobody_outlives_a_pause_of_files_only(ordinary: bool) -> None:
    """A chain of forks ends, and so do processes that wake each other: init is alone, and the files are there."""
    seen = run_scene("pause_scenes.storm_that_ends", ordinary=ordinary)
    # Init, and where nothing else bounds the memory the thread that watches it.
    assert seen.pop("after") in (1, 2)
    assert seen == {"before": True, "kept": "as it was"}


@pytest.mark.parametrize("ordinary", [False, True], ids=["as we are", "an ordinary user"])
def test_nobody_outlives_a_resume_of_files_only(ordinary: bool) -> None:
    """What a pause has stopped, by either way, ends before the sandbox goes on."""
    seen = run_scene("pause_scenes.storm_dropped_by_a_resume", ordinary=ordinary)
    assert seen.pop("after") in (1, 2)
    assert seen == {"variable": "False", "kept": "as it was"}


@pytest.mark.parametrize("ordinary", [False, True], ids=["as we are", "an ordinary user"])
def test_what_was_stopped_stays_stopped(ordinary: bool) -> None:
    """A pause undoes nothing that the code in the sandbox has done."""
    assert run_scene("pause_scenes.stopped_before", ordinary=ordinary) == ["'T'", "'T'"]


def test_paused_sandboxes_die_with_their_host() -> None:
    """SIGKILL of the host ends what is paused; nobody has to come and wake it."""
    guardian = start_scene("pause_scenes.host_with_paused_sandboxes", place=("guardian",))
    try:
        assert guardian.stdout is not None
        host = int(guardian.stdout.readline())
        os.kill(host, signal.SIGKILL)
        # The guardian ends after the last process that was left.
        guardian.communicate(timeout=30)
    finally:
        for pid in census.descendants_of(guardian.pid):
            os.kill(pid, signal.SIGKILL)

        end(guardian)

    assert run_scene("fault_scenes.one_call") == "42"
    assert census.cgroups_of(host) == []


def test_what_is_used_is_reported_also_on_the_way_to_a_pause() -> None:
    """Init stands still like all others: who waited for it would wait until the sandbox is resumed."""
    asked: list[asyncio.Task[Metrics]] = []

    async def ask(sandbox: LiveSandbox) -> None:
        asked.append(asyncio.ensure_future(sandbox.metrics()))
        await asyncio.sleep(0)

    for point in ("pause.settled", "pause.frozen"):
        with Sandbox() as sandbox:
            with failpoints.arm(point, ask):
                sandbox.pause()

            until(asked[-1].done)
            assert asked[-1].result().processes > 0
            assert sandbox.get_metrics().processes > 0
