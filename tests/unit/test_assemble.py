"""What is refused before an engine is made."""

from __future__ import annotations

import pytest

import fumehood_jail
from fumehood import Sandbox, SandboxStartError, assemble


def test_no_sandbox_is_made_inside_of_one(monkeypatch: pytest.MonkeyPatch):
    """There the guest's part of our packages comes first, with which an engine fails in its midst."""
    monkeypatch.setattr(assemble, "_backend", None)
    monkeypatch.setattr(fumehood_jail, "__path__", ["/opt/fumehood/fumehood_jail"])

    with pytest.raises(SandboxStartError, match="runs in a sandbox already") as caught:
        Sandbox()

    assert "python FILE" in caught.value.hint


def test_a_virtual_environment_in_that_folder_is_none(monkeypatch: pytest.MonkeyPatch):
    """The units for systemd have one there."""
    folder = "/opt/fumehood/lib/python3.11/site-packages/fumehood_jail"
    monkeypatch.setattr(fumehood_jail, "__path__", [folder])
    assemble._require_outside()
