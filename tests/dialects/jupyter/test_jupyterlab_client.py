"""JupyterLab's own client, @jupyterlab/services, under Node: what stands between its pages and a kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

MODULES = Path(__file__).parents[2] / "npm_programs" / "node_modules"
SCENE = Path(__file__).parent / "lab_scene.cjs"


def test_a_session_of_jupyterlab(server):
    node = shutil.which("node")

    if node is None or not (MODULES / "@jupyterlab" / "services").exists():
        pytest.skip("needs node and the modules of tests/npm_programs: make test installs both")

    done = subprocess.run(
        [node, str(SCENE), str(MODULES), server.url, server.token],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    first = outcome["first"]

    assert {"python3", "bash"} <= set(outcome["specs"])
    assert outcome["info"] == "python"
    assert first["reply"]["status"] == "ok"
    assert first["text"] == "hello ada\n"
    assert [kind for kind, _ in first["said"]] == [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "status",
    ]
    assert outcome["completion"] == ["print"]
    assert outcome["failed"] == "ZeroDivisionError"
    assert outcome["echoed"] == [1, 2, 255]
    assert outcome["interrupted"] == "KeyboardInterrupt"
    assert outcome["afterReconnect"] == "1\n"
    assert outcome["afterRestart"] == "False\n"
    assert outcome["afterDeath"] == "alive\n"
    assert "lab.ipynb" in outcome["running"]
    assert outcome["left"] == 0
