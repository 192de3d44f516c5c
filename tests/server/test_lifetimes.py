"""The life of a sandbox at a server: commands that use it renew it, and a cell that is cut off says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx2
import pytest
from tests.conftest import RunningServer

from fumehood import Sandbox, SandboxClosedError

# Long enough for a renewal in time on a busy machine, and short enough to be waited for.
LIFE_SECONDS = 5
OUTLIVES = f"import time; time.sleep({LIFE_SECONDS + 3}); print('ali' + 've')"


def _start(server: RunningServer, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fumehood", *words],
        cwd=folder,
        env={**os.environ, "FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_commands_renew_the_life_of_their_sandbox(start_server: Callable[..., RunningServer], tmp_path: Path):
    """A cell that takes longer than the server lets a sandbox live ends well in `repl`, `run` and `notebook run`."""
    server = start_server(sandbox_seconds=LIFE_SECONDS, pool_size=0)
    cell = {"cell_type": "code", "source": OUTLIVES, "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook))
    started = [
        _start(server, tmp_path, "repl"),
        _start(server, tmp_path, "run", "-"),
        _start(server, tmp_path, "notebook", "run", "in.ipynb", "-o", "out.ipynb"),
    ]

    for process in started:
        out, err = process.communicate(f"{OUTLIVES}\n", timeout=90)
        assert process.returncode == 0, err
        assert "alive" in out or "alive" in (tmp_path / "out.ipynb").read_text()


def test_a_longer_life_can_be_asked_for(server: RunningServer, api: httpx2.Client, tmp_path: Path):
    """`--lifetime` is how long the sandbox would live on without the command."""
    process = _start(server, tmp_path, "repl", "--lifetime", "1234")
    assert process.stderr is not None
    sandbox_id = next(line.split()[2].rstrip(",") for line in process.stderr if ", isolation" in line)
    info = api.get(f"/v1/sandboxes/{sandbox_id}").json()
    process.communicate(timeout=60)
    assert process.returncode == 0
    lived = datetime.fromisoformat(info["ends_at"]) - datetime.fromisoformat(info["started_at"])
    assert lived.total_seconds() == pytest.approx(1234, abs=5)


def test_a_cell_that_is_cut_off_by_the_end_of_the_life_is_reported(server: RunningServer):
    """Its error names the end of the sandbox, not the signal that its process was killed by."""
    errors = []

    with Sandbox(timeout=2, url=server.url, api_key=server.token) as sandbox:
        with pytest.raises(SandboxClosedError, match="its time ran out"):
            sandbox.run_code("import time; time.sleep(60)", on_error=errors.append)

    (error,) = errors
    assert (error.kind, error.name) == ("context_died", "SandboxEnded")
    assert "its time ran out; the state is lost" in error.value
    assert "set_timeout" in error.hint
