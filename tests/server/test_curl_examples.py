"""The guide to the HTTP API tells the truth: each of its examples is run by a real curl, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "http-api.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not shutil.which("curl"), reason="needs the program curl")
def test_every_example_works(server, tmp_path):
    """One shell runs them all, since later ones use what earlier ones have made."""
    marked = [f"echo '=== {number}'\n{block}" for number, block in enumerate(BLOCKS)]
    envs = {**os.environ, "FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(marked)],
        cwd=tmp_path,
        env=envs,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert '"text":"42"' in done.stdout
    assert "'ADA'" in done.stdout
    assert "'found gold'" in done.stdout
    assert "got one" in done.stdout
    assert "run by the blue team\\n" in done.stdout


def test_the_guide_shows_every_route(server):
    """A route that is not shown is not known."""
    described = httpx2.get(f"{server.url}/openapi.json", headers=server.headers, timeout=60).json()["paths"]
    shown = "\n".join(BLOCKS)

    for path in described:
        base = r"\$FUMEHOOD_URL"

        if path.startswith("/v1/sandboxes/{"):
            path, base = path.removeprefix("/v1/sandboxes/{sandbox_id}"), r"\$BOX"

        if path.startswith("/v1/records/{"):
            path, base = path.removeprefix("/v1/records/{sandbox_id}"), r"\$ENDED"

        pattern = "/".join('[^/ "]+' if part.startswith("{") else re.escape(part) for part in path.split("/"))
        assert re.search(rf"{base}{pattern}(?![\w/])", shown), path
