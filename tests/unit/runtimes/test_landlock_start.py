"""A template that does not start without namespaces leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from fumehood import SandboxStartError, TemplateError
from fumehood.runtimes import landlock
from fumehood.templates.template import Template


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
