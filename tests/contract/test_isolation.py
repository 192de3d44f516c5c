"""The level of isolation is what was reached, and a floor that a caller names is kept or the sandbox refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fumehood import InvalidArgumentError, IsolationUnavailableError, Sandbox, run_code
from fumehood.values.sandbox import MADE_LEVELS


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


@pytest.mark.parametrize("floor", ["gvisor", "vm"])
def test_below_the_required_isolation_nothing_starts(face, floor):
    """The error names what was asked for, what could be had, and how."""
    before = len(face.list())

    with pytest.raises(IsolationUnavailableError) as caught:
        face.open(isolation=floor)

    assert repr(floor) in str(caught.value)
    assert "'namespaces'" in str(caught.value)
    assert caught.value.hint
    assert len(face.list()) == before


def test_every_entry_has_the_required_isolation(tmp_path):
    """One call, the command line, and a stateless run."""
    with pytest.raises(IsolationUnavailableError, match="'vm'"):
        run_code("1", isolation="vm")

    program = tmp_path / "program.py"
    program.write_text("print(6 * 7)")
    words = [sys.executable, "-m", "fumehood", "run", str(program), "--isolation", "vm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "'vm'" in done.stderr


def test_a_level_that_does_not_exist_is_refused(face):
    """With the names that a version can reach."""
    with pytest.raises(InvalidArgumentError) as caught:
        face.open(isolation="docker")

    assert all(level in caught.value.hint for level in MADE_LEVELS)
