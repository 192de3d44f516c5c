"""The official JavaScript SDKs under node, of both generations, over both transports: one scene, told as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import at

SCENE = Path(__file__).parent / "scene.mjs"
MODULES = Path(__file__).parents[1] / "npm_programs" / "node_modules"
SECONDS = 60
# The package that most hosts still bring, and the one that speaks 2026-07-28.
GENERATIONS = {"1": "sdk", "2": "client"}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_host_in_javascript(generation: str, transport: str, server: Any, tmp_path: Path) -> None:
    node = shutil.which("node")

    if node is None or not (MODULES / "@modelcontextprotocol" / GENERATIONS[generation]).is_dir():
        pytest.skip("needs node and the packages of tests/npm_programs: `make test` installs them")

    # Modules are looked for beside the program, and the tree of the tests stays as it is.
    shutil.copy(SCENE, tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    envs = {
        "PATH": os.environ["PATH"],
        "GENERATION": generation,
        "TRANSPORT": transport,
        "PYTHON": sys.executable,
        "URL_OF_SERVER": f"{server.url}/mcp",
        "TOKEN": server.token,
        **at(server),
    }
    done = subprocess.run(
        [node, str(tmp_path / SCENE.name)],
        env=envs,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {"run_code", "write_file", "checkpoint"} <= set(told.pop("tools"))
    assert told == {
        "first": ["made\n", False],
        "state": "42",
        "progress": True,
        "pictures": ["image/png"],
        "failed": [True, "ZeroDivisionError"],
        "file": ["text/csv", "a,b\n1,2\n"],
        "ended": True,
    }
