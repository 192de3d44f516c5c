"""Start commands: a template's own server runs in each of its sandboxes, which are handed out when it is ready."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image
from tests.image_layouts import needs_program

from fumehood import CommandExitError, Sandbox, SandboxStartError, StartCommand, Template
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal, call
from fumehood.values.display import DISPLAY, with_display

pytestmark = pytest.mark.in_process
Open = Callable[..., Any]
_SERVER = "exec python -m http.server 8123 --bind 127.0.0.1 --directory /tmp"
_SERVING = Template(
    name="serving",
    preload=(),
    envs={"OF": "template"},
    start=StartCommand(
        command=f"echo started; echo $OF $CALLER > /tmp/envs.txt; {_SERVER}",
        ready="url:http://localhost:8123/envs.txt",
    ),
)
_ASK = "import urllib.request as r; r.urlopen('http://localhost:8123/envs.txt').read().decode()"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """An engine with a pool of one."""
    portal = Portal()
    yield make_backend(EngineSettings(pool_size=1), portal)
    portal.close()


@pytest.fixture(scope="module")
def open_one(engine) -> Open:
    """Makes sandboxes by it."""
    return lambda template, **options: Sandbox(template, backend=engine, **options)


def test_a_sandbox_is_handed_out_ready(open_one):
    """The first line of its caller reaches the server, which runs as a command that can be followed and ended."""
    with open_one(_SERVING, envs={"CALLER": "caller"}) as sandbox:
        assert sandbox.run_code(_ASK).text == repr("template\n")
        (running,) = sandbox.commands.list()
        assert running.argv[-1].endswith(_SERVER)
        assert sandbox.commands.kill(running.pid)


def test_a_sandbox_of_the_pool_keeps_its_context(open_one, engine):
    """A caller without variables of its own gets the process that waits in the pool; for others it is replaced."""
    plain = Template(name="plain", preload=())
    pids = []

    for envs in ({}, {"CALLER": "caller"}):
        open_one(plain).kill()
        call(engine.wait_warm, "plain")

        with open_one(plain, envs=envs) as sandbox:
            pids.append(int(sandbox.run_code("import os; os.getpid()").text))

    kept, replaced = pids
    assert kept < replaced


def test_a_sandbox_of_the_pool_is_ready_too(open_one, engine):
    """It was started before its caller came, and knows nothing of its caller's variables."""
    open_one(_SERVING).kill()
    call(engine.wait_warm, "serving")

    with open_one(_SERVING, envs={"CALLER": "caller"}) as sandbox:
        assert sandbox.run_code(_ASK).text == repr("template\n")
        assert sandbox.commands.run("echo $CALLER").stdout == "caller\n"
        (running,) = sandbox.commands.list()
        heard: list[str] = []
        handle = sandbox.commands.connect(running.pid, on_stdout=heard.append)
        handle.kill()

        with pytest.raises(CommandExitError):
            handle.wait()

        assert "".join(heard) == "started\n"


@pytest.mark.parametrize("ready", ["file:/tmp/up", 'command:test -e /tmp/up && test -n "$OF"', "port:8124"])
def test_files_commands_and_ports_are_checks(open_one, ready):
    """Each holds only after it has failed at first."""
    command = "sleep 0.1; touch /tmp/up; exec python -m http.server 8124"
    start = StartCommand(command=command, ready=ready)
    template = Template(name=f"ready-{ready[:4]}", preload=(), envs={"OF": "it"}, start=start)

    with open_one(template) as sandbox:
        assert sandbox.run_code("import os; os.path.exists('/tmp/up')").text == "True"


# A client of the X protocol, of no library: a red window over the whole screen.
_RED = """
import socket, struct
s = socket.socket(socket.AF_UNIX)
s.connect("/tmp/.X11-unix/X99")
s.sendall(struct.pack("<BxHHHHxx", 0x6C, 11, 0, 0, 0))
head = s.recv(8, socket.MSG_WAITALL)
setup = s.recv(4 * struct.unpack("<H", head[6:])[0], socket.MSG_WAITALL)
base, = struct.unpack("<I", setup[4:8])
vendor, = struct.unpack("<H", setup[16:18])
root, = struct.unpack_from("<I", setup, 32 + (vendor + 3) // 4 * 4 + 8 * setup[21])
s.sendall(struct.pack("<BBHIIhhHHHHIIII", 1, 0, 10, base, root, 0, 0, 1280, 800, 0, 1, 0, 0x202, 0xFF2010, 1))
s.sendall(struct.pack("<BxHI", 8, 2, base))
# An answer means that what was sent before is done.
s.sendall(struct.pack("<BxH", 43, 1))
assert s.recv(32, socket.MSG_WAITALL)[0] == 1
"""


def test_a_display_shows_what_programs_draw(open_one):
    """DISPLAY leads to a screen of the sandbox's own, before and beside the template's start command."""
    needs_program("Xvfb")
    start = StartCommand(command="echo $DISPLAY > /tmp/up; exec sleep 1000", ready="file:/tmp/up")
    template = Template(name="shown", preload=(), envs={"DISPLAY": DISPLAY}, start=with_display(start))

    with open_one(template) as sandbox:
        assert sandbox.files.read("/tmp/up") == ":99\n"
        assert sandbox.run_code(_RED).error is None
        picture = Image.open(io.BytesIO(sandbox.screenshot()))
        assert picture.size == (1280, 800)
        assert {picture.getpixel(place) for place in ((0, 0), (640, 400), (1279, 799))} == {
            (0xFF, 0x20, 0x10)
        }


def test_a_command_that_fails_is_reported(open_one, caplog):
    """The error has the exit code and its last words, which no line of the log has: it has our words only."""
    start = StartCommand(command="echo no port left >&2; exit 3", ready="port:8123")

    with pytest.raises(SandboxStartError, match="ended with 3: no port left") as refused:
        open_one(Template(name="failing", preload=(), start=start))

    assert "echo" in refused.value.reason
    assert "echo" not in caplog.text
    assert "no port left" not in caplog.text
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "sandbox.not_created"]
    assert "run the template's start command: it ended with 3" in told.getMessage()


def test_one_that_never_gets_ready_is_reported(open_one):
    """The time is bounded, and a server that accepts and never answers is not ready."""
    mute = "import socket; s = socket.create_server(('127.0.0.1', 8123)); a = s.accept(); input()"
    command = f'echo I wait; tail -f /dev/null | python -c "{mute}"'
    start = StartCommand(command=command, ready="url:http://localhost:8123/", ready_seconds=1.0)

    with pytest.raises(SandboxStartError, match="did not hold within 1 s: I wait"):
        open_one(Template(name="mute", preload=(), start=start))
