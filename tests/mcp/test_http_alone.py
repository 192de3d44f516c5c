"""`fumehood mcp --http`: the server with nothing but `/mcp` and the native API, for whoever wants no more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from .conftest import ARGV, QUICK, over_http, play, run

TOKEN = "a-token-of-the-test-0123"


def test_it_listens_and_ends(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    state = {
        "FUMEHOOD_STATE_FOLDER": str(tmp_path / "state"),
        "FUMEHOOD_TOKEN": TOKEN,
        **QUICK,
    }
    argv = [sys.executable, *ARGV, "--http", "--port", "0"]

    with subprocess.Popen(argv, env={**given, **state}, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = (re.search(r"listens on (http://\S+)", line) for line in process.stderr)
            url = next(found[1] for found in said if found)

            async def scene() -> None:
                async with over_http(url, TOKEN) as client:
                    made = (await run(client, "6 * 7")).structured_content
                    assert made["value"] == "42"

            play(scene)
            assert httpx2.post(f"{url}/mcp", json={}, timeout=60).status_code == 401
            assert httpx2.post(f"{url}/run_code", json={}, timeout=60).status_code == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
