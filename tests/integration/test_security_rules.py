"""What a rule ends a sandbox for is not handed out, however the end and the last reply race each other."""

from __future__ import annotations

import pytest

from fumehood import Sandbox, SandboxClosedError, SecurityRule
from fumehood.runtimes.namespaces.guest import LinuxGuest

DENIED = """
import urllib.request
try:
    urllib.request.urlopen("http://example.com/")
except OSError:
    print("on")
"""


@pytest.mark.parametrize("action", ["record", "kill"])
def test_code_that_is_quicker_than_its_kill_gives_nothing(monkeypatch, action):
    held: list[LinuxGuest] = []
    kill = LinuxGuest.kill
    sandbox = Sandbox(security_policy=[SecurityRule(kind="egress_denied", action=action)])
    # The signal is on its way for as long as the code takes to come to its own end.
    monkeypatch.setattr(LinuxGuest, "kill", lambda guest: held.append(guest))
    try:
        if action == "record":
            assert sandbox.run_code(DENIED).logs.stdout == ["on\n"]
        else:
            with pytest.raises(SandboxClosedError) as closed:
                sandbox.run_code(DENIED)

            assert closed.value.reason == "policy"
            assert held
    finally:
        monkeypatch.undo()

        for guest in held:
            kill(guest)

        sandbox.kill()
