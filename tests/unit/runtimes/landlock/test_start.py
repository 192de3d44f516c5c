"""A template that does not start without namespaces leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading

import pytest

from fumehood import SandboxStartError, TemplateError
from fumehood.runtimes.landlock import runtime as landlock
from fumehood.values.template import Template

# How often a start is refused: what each would leave is more than other threads of this process open meanwhile.
_TIMES = 20


class Ids:
    """Ids of the host, which are somebody's until they are given back."""

    held = 0

    def __init__(self) -> None:
        Ids.held += 1

    def release(self) -> None:
        Ids.held -= 1


def test_ids_and_folder_are_given_back(monkeypatch, tmp_path):
    """Whichever of both cannot be had, and whatever comes then."""
    monkeypatch.setattr(landlock, "why_impossible", lambda: None)
    monkeypatch.setattr(landlock, "_own_ids", Ids)
    monkeypatch.setattr(landlock.tempfile, "tempdir", str(tmp_path / "nothing"))

    with pytest.raises(SandboxStartError, match="folder"):
        asyncio.run(landlock.LandlockRuntime().start(Template()))

    assert Ids.held == 0
    monkeypatch.setattr(landlock.tempfile, "tempdir", str(tmp_path))

    def fail(*_arguments):
        raise TemplateError(template="default", reason="it is broken")

    monkeypatch.setattr(landlock.LandlockRuntime, "_place", fail)

    with pytest.raises(TemplateError):
        asyncio.run(landlock.LandlockRuntime().start(Template()))

    assert (Ids.held, list(tmp_path.iterdir())) == (0, [])


def test_a_thread_that_comes_too_late_leaves_no_folder(monkeypatch, tmp_path):
    """It goes on with what it is at when the start has been given up."""
    monkeypatch.setattr(landlock, "why_impossible", lambda: None)
    monkeypatch.setattr(landlock, "_own_ids", Ids)
    monkeypatch.setattr(landlock.tempfile, "tempdir", str(tmp_path))
    begun, go_on = threading.Event(), threading.Event()

    def place(_runtime, _template, folder, _ids):
        begun.set()
        go_on.wait()
        os.makedirs(os.path.join(folder, "code"))

    monkeypatch.setattr(landlock.LandlockRuntime, "_place", place)

    async def scene():
        starting = asyncio.create_task(landlock.LandlockRuntime().start(Template()))
        await asyncio.to_thread(begun.wait)
        starting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await starting

        go_on.set()

    # Its loop waits for its threads.
    asyncio.run(scene())
    assert (Ids.held, list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize(
    ("module", "function"), [(subprocess, "Popen"), (os, "pidfd_open"), (os, "memfd_create")]
)
def test_a_launcher_that_cannot_be_started_leaves_no_descriptor(monkeypatch, tmp_path, module, function):
    """Whatever the machine has no more of."""
    monkeypatch.setattr(landlock, "why_impossible", lambda: None)
    monkeypatch.setattr(landlock, "_own_ids", lambda: None)
    monkeypatch.setattr(landlock.tempfile, "tempdir", str(tmp_path))
    place = landlock.SandboxFolders(
        rooms="rooms", readable=[], files=None, ids=None, cgroup=(None, ""), envs={}
    )
    monkeypatch.setattr(landlock.LandlockRuntime, "_place", lambda *_: place)

    def refuse(*_arguments, **_named):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scene():
        before = len(os.listdir("/proc/self/fd"))

        with monkeypatch.context() as patch:
            patch.setattr(module, function, refuse)

            for _ in range(_TIMES):
                with pytest.raises(OSError, match="open files"):
                    await landlock.LandlockRuntime().start(Template())

        return len(os.listdir("/proc/self/fd")) - before

    assert asyncio.run(scene()) < _TIMES // 2
