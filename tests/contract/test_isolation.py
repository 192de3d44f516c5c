"""The level of isolation is what was reached, and a floor that a caller names is kept or the sandbox refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fumehood import InvalidArgumentError, Sandbox, run_code
from fumehood.values.sandbox import ISOLATION_LEVELS


def test_what_is_asked_for_by_name_is_reached(face):
    """It is in what the sandbox tells of itself and in every execution."""
    sandbox = face.open(isolation="namespaces")

    assert sandbox.get_info().isolation.level == "namespaces"
    assert sandbox.run_code("1").isolation == "namespaces"


@pytest.mark.in_process
def test_required_isolation_is_a_minimum(face):
    """The strongest that this machine can do is what one gets, also where less would do."""
    assert face.open(isolation="landlock-only").get_info().isolation.level == "namespaces"


def test_a_server_makes_nothing_weaker_than_its_operator_allows(unbounded_server):
    """Whoever asks over the network cannot lower the floor."""
    with pytest.raises(InvalidArgumentError, match="landlock-only"):
        Sandbox(isolation="landlock-only", url=unbounded_server.url, api_key=unbounded_server.token)


@pytest.mark.parametrize("level", ["gvisor", "vm", "docker"])
def test_a_level_that_no_runtime_reaches_is_refused(face, level):
    """The error names the value and the levels that there are, and nothing starts."""
    before = len(face.list())

    with pytest.raises(InvalidArgumentError) as caught:
        face.open(isolation=level)

    assert repr(level) in str(caught.value)
    assert all(name in caught.value.hint for name in ISOLATION_LEVELS)
    assert len(face.list()) == before


def test_every_entry_refuses_such_a_level(tmp_path):
    """One call, the command line, and the setting of a process."""
    with pytest.raises(InvalidArgumentError, match="'vm'"):
        run_code("1", isolation="vm")  # type: ignore[arg-type]

    program = tmp_path / "program.py"
    program.write_text("print(6 * 7)")
    command = [sys.executable, "-m", "fumehood", "run", str(program)]
    option = subprocess.run([*command, "--isolation", "vm"], capture_output=True, text=True, check=False)
    envs = {**os.environ, "FUMEHOOD_ISOLATION": "vm"}
    setting = subprocess.run(command, capture_output=True, text=True, check=False, env=envs)

    for done in (option, setting):
        assert done.returncode == 64
        assert "'vm'" in done.stderr
        assert "none, landlock-only, namespaces" in done.stderr
