"""`fumehood kernel`: a kernel that Jupyter's own programs start by its spec, each time with a sandbox of its own."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jupyter_kernel_test
import nbformat
import psutil
import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from tests import kernel_samples

from fumehood.cli.main import main

# Its process ends loudly otherwise: clients of Jupyter leave their sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS = 60


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory) -> Iterator[Path]:
    """Two installed kernels, which the clients of this process find."""
    prefix = tmp_path_factory.mktemp("prefix")
    data = prefix / "table.csv"
    data.write_text("a\n1\n", encoding="utf-8")
    words = ["--memory", "512M", "--timeout", "20", "--env", "WHO=ada", "--file", str(data)]
    assert main(["kernel", "install", "--prefix", str(prefix), *words]) == 0
    assert main(["kernel", "install", "--prefix", str(prefix), "--name", "shell", "--language", "bash"]) == 0

    for language in ("javascript", "r", "java"):
        assert main(["kernel", "install", "--prefix", str(prefix), "--language", language]) == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(prefix / "share" / "jupyter"))
        patch.setenv("JUPYTER_DATA_DIR", str(prefix / "none"))
        # Each kernel has an engine of its own, which would import libraries that few cells need.
        patch.setenv("FUMEHOOD_PRELOAD", "")
        yield prefix


@pytest.fixture
def running() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name="fumehood", startup_timeout=SECONDS)
    yield manager, client
    client.stop_channels()

    if manager.is_alive():
        manager.shutdown_kernel()


class TestConformance(kernel_samples.Python, jupyter_kernel_test.KernelTests):
    """The tests that Jupyter's developers have for kernels."""

    kernel_name = "fumehood"


class TestJavaScript(kernel_samples.JavaScript, jupyter_kernel_test.KernelTests):
    """The same for Node."""

    kernel_name = "fumehood-javascript"


@kernel_samples.needs_r
class TestR(kernel_samples.R, jupyter_kernel_test.KernelTests):
    """The same for R."""

    kernel_name = "fumehood-r"


@kernel_samples.needs_java
class TestJava(kernel_samples.Java, jupyter_kernel_test.KernelTests):
    """The same for Java."""

    kernel_name = "fumehood-java"


def outputs_of(client: BlockingKernelClient, code: str, **options) -> tuple[dict, str]:
    """Runs code and returns the content of its reply and its text."""
    found = []
    reply = client.execute_interactive(code, timeout=SECONDS, output_hook=found.append, **options)
    texts = [
        message["content"].get("text") or message["content"].get("data", {}).get("text/plain", "")
        for message in found
    ]
    return reply["content"], "".join(texts)


def test_options_of_the_spec_hold(running):
    """What was given to `install` holds for each kernel: memory, variables, files, no network."""
    _, client = running
    assert (
        outputs_of(client, "import os; os.environ['WHO'], open('table.csv').read()")[1]
        == "('ada', 'a\\n1\\n')"
    )
    assert outputs_of(client, "x = bytearray(700 << 20)")[0]["ename"] in ("OutOfMemory", "MemoryError")
    reply, _ = outputs_of(client, "import urllib.request as u; u.urlopen('http://example.com', timeout=5)")
    assert reply["status"] == "error"


def test_input_and_interrupt(running):
    """`input()` asks the client; an interrupt by message keeps the variables, and one by signal does too."""
    manager, client = running
    asked = []

    def answer(message):
        asked.append(message["content"]["prompt"])
        client.input("ada")

    assert (
        outputs_of(client, "name = input('who? '); name", stdin_hook=answer, allow_stdin=True)[1] == "'ada'"
    )
    assert asked == ["who? "]

    for interrupt in (manager.interrupt_kernel, lambda: manager.signal_kernel(signal.SIGINT)):
        request = client.execute("import time; time.sleep(60)")

        while client.get_iopub_msg(timeout=SECONDS)["msg_type"] != "execute_input":
            pass

        time.sleep(0.3)
        interrupt()
        reply = client.get_shell_msg(timeout=SECONDS)
        assert reply["parent_header"]["msg_id"] == request
        assert reply["content"]["ename"] == "KeyboardInterrupt"

    assert outputs_of(client, "name")[1].endswith("'ada'")


def test_restart_begins_afresh(running):
    """A restart is another process and another sandbox; no process of the first is left."""
    manager, client = running
    outputs_of(client, "x = 1; open('made', 'w').close()")
    before = psutil.Process(manager.provisioner.pid)
    below = before.children(recursive=True)
    manager.restart_kernel()
    client.wait_for_ready(timeout=SECONDS)
    assert outputs_of(client, "'x' in dir(), __import__('os').path.exists('made')")[1] == "(False, False)"
    assert [process for process in [before, *below] if process.is_running()] == []


def test_a_restart_is_not_announced_as_a_death(running):
    """JupyterLab gives the connection to a kernel up for good that calls itself dead: its process has only changed."""
    manager, client = running
    outputs_of(client, "1")
    manager.restart_kernel()
    states = []

    with suppress(queue.Empty):
        while True:
            states.append(client.get_iopub_msg(timeout=1)["content"].get("execution_state"))

    assert "idle" in states
    assert "dead" not in states


def test_the_kernel_ends_with_the_program_that_started_it(kernels):
    """A client that is killed leaves no kernel behind."""
    program = (
        "import sys; from jupyter_client.manager import start_new_kernel\n"
        "manager, client = start_new_kernel(kernel_name='fumehood')\n"
        "print(manager.provisioner.pid, flush=True); sys.stdin.read()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with client:
        assert client.stdout is not None
        kernel = psutil.Process(int(client.stdout.readline()))
        client.kill()

    kernel.wait(SECONDS)


def test_a_kernel_whose_client_has_ended_while_it_starts_ends_too(kernels):
    """Before its sandbox is there, and before it has looked who started it."""
    program = (
        "import sys; from jupyter_client.manager import KernelManager\n"
        "manager = KernelManager(kernel_name='fumehood'); manager.start_kernel()\n"
        "print(manager.provisioner.pid, flush=True); sys.stdin.read()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with client:
        assert client.stdout is not None
        kernel = psutil.Process(int(client.stdout.readline()))
        client.kill()

    kernel.wait(SECONDS)


def test_a_strangers_message_that_is_too_large_is_not_taken(running):
    """Its signature is looked at when all of it is there: another user of the machine could fill the memory."""
    manager, client = running
    process = psutil.Process(manager.provisioner.pid)
    before = process.memory_info().rss
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    closed = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    stranger.connect(f"tcp://127.0.0.1:{manager.shell_port}")
    stranger.send(bytes(300 << 20))
    assert closed.poll(SECONDS * 1000), "the connection is not closed"
    assert process.memory_info().rss - before < 100 << 20
    context.destroy(0)
    assert outputs_of(client, "6 * 7")[1] == "42"


def test_a_notebook_runs(tmp_path):
    """nbclient, with a figure and a failing cell."""
    cells = ["import os; os.getcwd()", "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", "1/0"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="fumehood", allow_errors=True, timeout=SECONDS).execute(cwd=tmp_path)
    first, second, third = notebook.cells
    assert first.outputs[0].data["text/plain"] == "'/home/user'"
    assert "image/png" in second.outputs[-1].data
    assert third.outputs[0].ename == "ZeroDivisionError"
    nbformat.validate(notebook)


def test_bash_is_a_kernel_too():
    """Its variables stay from cell to cell."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in ("x=6", "echo $((x * 7))")]
    )
    NotebookClient(notebook, kernel_name="shell", timeout=SECONDS).execute()
    assert notebook.cells[1].outputs[0].text == "42\n"


def test_a_message_with_a_wrong_signature_is_not_run(running):
    """Another user of the machine can reach the port, and has no key."""
    manager, client = running
    stranger = KernelManager(connection_file=manager.connection_file)
    stranger.load_connection_file()
    stranger.session.key = b"another"
    other = stranger.client()
    other.start_channels()
    other.execute("open('/home/user/made', 'w').close()")
    time.sleep(1)
    assert outputs_of(client, "__import__('os').path.exists('made')")[1] == "False"
    other.stop_channels()


def test_list_and_remove(kernels, capsys):
    """Only kernels of ours are listed and removed."""
    assert main(["kernel", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = ["fumehood", "fumehood-java", "fumehood-javascript", "fumehood-r", "shell"]
    assert [entry["name"] for entry in found] == names
    assert main(["kernel", "remove", "python3"]) == 64
    assert ", ".join(names) in capsys.readouterr().err
    other = kernels / "share" / "jupyter" / "kernels" / "gone"
    assert main(["kernel", "install", "--prefix", str(kernels), "--name", "gone"]) == 0
    assert other.is_dir()
    assert main(["kernel", "remove", "gone"]) == 0
    assert not other.exists()


def test_what_cannot_be_installed_is_refused(capsys):
    """At once, and not by the client that would start it."""
    for words, said in (
        (["--name", "a b"], "--name='a b'"),
        (["--user", "--sys-prefix"], "one of --user, --prefix, --sys-prefix"),
        (["--memory", "1"], "--memory=1"),
    ):
        assert main(["kernel", "install", *words]) == 64
        assert said in capsys.readouterr().err

    assert main(["kernel", "start", "-f", os.devnull]) == 64
    assert "--connection-file='/dev/null'" in capsys.readouterr().err
