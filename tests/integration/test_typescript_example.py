"""The example in TypeScript: its compiler checks it, then it runs against a real server and a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "tests" / "npm_programs" / "node_modules"
NEEDED = ("openai", "typescript", "@types/node")
SECONDS = 100
FIRST = "import pandas as pd\nrows = pd.read_csv('/mnt/data/penguins.csv')\nrows.columns_"
SECOND = (
    "import matplotlib.pyplot as plt\n"
    "mass = rows.groupby('species').body_mass_g.mean()\nmass.plot.bar(); plt.show()\nmass.idxmax()"
)


class Model(ThreadingHTTPServer):
    """A server with OpenAI's Responses API that answers with what a script says, and keeps what it was asked."""

    def __init__(self, script: list[Callable[[list[dict[str, Any]]], dict[str, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.script = script
        self.asked: list[dict[str, Any]] = []


class _Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        model = self.server
        assert isinstance(model, Model)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model.asked.append(request)
        item = model.script[len(model.asked) - 1](request["input"])
        body = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": [item]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _calls(code: str) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    arguments = json.dumps({"code": code})
    return lambda _: {
        "type": "function_call",
        "id": "fc_1",
        "call_id": f"call_{len(code)}",
        "name": "run_code",
        "arguments": arguments,
        "status": "completed",
    }


def _repeats(conversation: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer is what the code has found, so it cannot be right by accident."""
    found = conversation[-1]["output"][0]["text"].strip("'").rpartition("'")[2]
    text = {"type": "output_text", "text": f"The heaviest are: {found}", "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}


@pytest.fixture
def model() -> Iterator[Model]:
    with Model([_calls(FIRST), _calls(SECOND), _repeats]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The example, compiled; its modules are those of the tests, and the tree stays as it is."""
    if shutil.which("node") is None or not all((MODULES / name).is_dir() for name in NEEDED):
        pytest.skip("needs node and the packages of tests/npm_programs: `make test` installs them")

    folder = tmp_path / "example"
    shutil.copytree(
        ROOT / "examples" / "typescript", folder, ignore=shutil.ignore_patterns("node_modules", "*.js")
    )
    (folder / "node_modules").symlink_to(MODULES)
    compiler = MODULES / "typescript" / "bin" / "tsc"
    done = subprocess.run(["node", compiler], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return folder / "analyst.js"


def test_a_tool_loop_in_typescript(program: Path, server: Any, model: Model) -> None:
    """An error, its repair with the state kept, a figure, an answer; and no sandbox is left."""
    envs = {
        "PATH": os.environ["PATH"],
        "FUMEHOOD_URL": server.url,
        "FUMEHOOD_API_KEY": server.token,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{model.server_port}/v1",
    }
    before = _living(server)
    data = ROOT / "examples" / "data" / "penguins.csv"
    done = subprocess.run(
        ["node", program, data, "Which species is the heaviest?"],
        env=envs,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "The heaviest are: Gentoo\n"), done.stderr

    first = model.asked[1]["input"][-1]["output"]
    assert "AttributeError" in first[0]["text"]
    second = model.asked[2]["input"][-1]["output"]
    assert second[1]["image_url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert _living(server) == before


def _living(server: Any) -> set[str]:
    answer = httpx2.get(f"{server.url}/v1/sandboxes", headers=server.headers, timeout=SECONDS)
    return {item["id"] for item in answer.json()["items"]}
