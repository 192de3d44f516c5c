"""Notebooks of a real Jupyter server, as JupyterLab has them with `--gateway-url`: its kernels are sandboxes here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .conftest import Gateway, sandbox_of, type_of
from .jupyter_server import JupyterServer, jupyter_envs

pytest.importorskip("jupyter_server", reason="needs jupyter_server: the dependency group `clients`")

NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for source in (
            "import socket\nimport pandas as pd\ndf = pd.DataFrame({'x': [1, 2, 3]})\nprint(socket.gethostname())",
            "df.x.sum()",
            "import matplotlib.pyplot as plt\nplt.plot(df.x)\nplt.show()",
            "df",
        )
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture(scope="module")
def jupyter(server, tmp_path_factory) -> Iterator[JupyterServer]:
    running = JupyterServer(tmp_path_factory.mktemp("jupyter"), server.url, server.token)
    yield running
    running.stop()


@pytest.fixture
def lab(jupyter) -> Iterator[Gateway]:
    """The Jupyter server as a browser would use it."""
    made = Gateway(jupyter.url, "")
    del made.http.headers["Authorization"]
    yield made
    made.close()


def texts(messages) -> list[str]:
    return [message["content"]["text"] for message in messages if type_of(message) == "stream"]


def test_a_notebook_has_a_sandbox_for_its_kernel(lab, gateway):
    specs = lab.call("GET", "/api/kernelspecs").json()
    assert specs["default"] == "python3"
    assert lab.call("GET", specs["kernelspecs"]["python3"]["resources"]["logo-svg"]).status_code == 200

    body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    session = lab.call("POST", "/api/sessions", json=body).json()
    kernel_id = session["kernel"]["id"]
    assert kernel_id in [kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()]
    channels = lab.connect(kernel_id, session="lab")

    assert channels.ask("kernel_info_request", {})["implementation"] == "fumehood"
    assert texts(channels.run("import os; print(os.getcwd())")) == ["/home/user\n"]
    channels.run("import json")
    assert "dumps" in str(channels.ask("complete_request", {"code": "json.du", "cursor_pos": 7}))

    assert lab.call("DELETE", f"/api/sessions/{session['id']}").status_code == 204
    assert gateway.native("GET", f"/v1/sandboxes/{sandbox_of(kernel_id)}").status_code in (404, 410)


def test_a_cell_is_interrupted_and_a_kernel_restarted(lab):
    kernel_id = lab.start(name="python3")
    channels = lab.connect(kernel_id, session="lab")
    msg_id = channels.execute("x = 1\nprint('begun')\nwhile True: pass")
    channels.until(lambda message: type_of(message) == "stream")
    assert lab.call("POST", f"/api/kernels/{kernel_id}/interrupt").status_code == 204
    (error,) = [message for message in channels.answers(msg_id) if type_of(message) == "error"]
    assert error["content"]["ename"] == "KeyboardInterrupt"
    assert texts(channels.run("print(x)")) == ["1\n"]

    assert lab.call("POST", f"/api/kernels/{kernel_id}/restart").status_code == 200
    assert "NameError" in str(channels.run("x"))


def test_input_is_asked_in_the_notebook(lab):
    channels = lab.connect(lab.start(name="python3"), session="lab")
    msg_id = channels.execute("print('hello', input('who? '))", allow_stdin=True)
    asked = channels.until(lambda message: message["channel"] == "stdin")[-1]
    channels.send("input_reply", {"value": "ada"}, channel="stdin", parent_header=asked["header"])

    assert texts(channels.answers(msg_id)) == ["hello ada\n"]


@pytest.mark.parametrize("kernel_name", ["python3", "bash"])
def test_both_languages_are_offered(lab, kernel_name):
    channels = lab.connect(lab.start(name=kernel_name))
    code = "print('hello')" if kernel_name == "python3" else "echo hello"
    assert texts(channels.run(code)) == ["hello\n"]


def test_nbconvert_executes_a_notebook_through_the_gateways_client(jupyter, tmp_path):
    """nbclient, jupyter_client and jupyter_server's GatewayKernelManager, as papermill uses them."""
    path = tmp_path / "report.ipynb"
    path.write_text(json.dumps(NOTEBOOK))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(path)),
            "--ExecutePreprocessor.kernel_manager_class=jupyter_server.gateway.managers.GatewayKernelManager",
        ],
        env=jupyter_envs(tmp_path, JUPYTER_GATEWAY_URL=jupyter.url),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads(path.read_text())["cells"]
    host, total, figure, table = [cell["outputs"][0] for cell in cells]

    assert [cell["execution_count"] for cell in cells] == [1, 2, 3, 4]
    assert host["name"] == "stdout"
    assert total["data"]["text/plain"] == ["np.int64(6)"]
    assert figure["data"]["image/png"].startswith("iVBOR")
    assert "<table" in "".join(table["data"]["text/html"])
