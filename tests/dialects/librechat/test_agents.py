"""The tools of `@librechat/agents`, unmodified, under node: one scene, told as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCENE = Path(__file__).parent / "scene.mjs"
MODULES = Path(__file__).parents[2] / "external_clients" / "node_modules"
SECONDS = 100


@pytest.fixture(scope="module")
def told(server) -> dict[str, object]:
    """What the scene saw."""
    node = shutil.which("node")

    if node is None or not (MODULES / "@librechat" / "agents" / "dist").is_dir():
        pytest.skip("needs node and the packages of tests/external_clients: `make test` installs them")

    done = subprocess.run(
        [node, str(SCENE)],
        env={
            "PATH": os.environ["PATH"],
            "MODULES": str(MODULES),
            "BASE_URL": f"{server.url}/librechat",
            "TOKEN": server.token,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_code_and_its_files(told):
    """Made in one run, found by the session's list, read in the next."""
    assert told["made"] == [True, ["t.csv"]]
    assert told["fetched"] == [["t.csv", True, "user"]]
    assert told["read"] == "a,b"
    assert told["bash"] == "hi"


def test_code_that_calls_tools(told):
    """In Python and in Bash, by the client's own loop of requests."""
    assert told["programmatic"] == "40"
    assert told["bashProgrammatic"] == 'got {"city":"LA","degrees":20}'
    assert told["asked"] == ["LA", "NY", "SF"]


def test_refusals_in_the_clients_words(told):
    """What the client makes of our statuses and errors."""
    assert "Execution exited with code 1" in told["failed"]
    assert "ZeroDivisionError" in told["failed"]
    assert "Code execution is not authorized" in told["denied"]
    assert "does not provide the requested execution profile" in told["mismatch"]
