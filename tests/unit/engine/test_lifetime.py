"""The end of a sandbox's time, when it is to be paused and cannot be."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace

import pytest

from fumehood.engine.clock import SandboxClock
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.engine.lifetime import Lifetime
from fumehood.errors import SandboxError
from fumehood.values.requests import SandboxSpec


@pytest.mark.parametrize(
    "refusal",
    [
        None,
        SandboxError("some of it does not stop"),
        InitError("os", "no", 1),
        InitGoneError(),
        OSError(errno.ENODEV, "the control group has gone"),
        RuntimeError("a fault"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("action", ["pause", "pause_files"])
def test_what_cannot_be_paused_in_time_is_ended(refusal, action):
    """Whatever keeps it from standing still: its time is over."""

    async def scene():
        ended = []
        paused = asyncio.Event()

        async def pause(*, files_only):
            assert files_only is (action == "pause_files")
            paused.set()

            if refusal is not None:
                raise refusal

        sandbox = SimpleNamespace(clock=SandboxClock(), end=ended.append)
        lifetime = Lifetime(sandbox, SandboxSpec(timeout_seconds=0.01, on_timeout=action), pause)
        await paused.wait()
        await asyncio.sleep(0)
        lifetime.close()
        return ended

    assert asyncio.run(scene()) == ([] if refusal is None else ["expired"])
