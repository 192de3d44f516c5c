"""X01, X02: what happens to a caller when a context, init or the sandbox itself dies under it."""

from __future__ import annotations

import glob
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import DEADLINE_SECONDS, until, within

from fumehood import SandboxClosedError, SandboxError

DEATHS = {
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "exit": "import os; os._exit(7)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "killed by a child": "import os, subprocess; subprocess.run(['sh', '-c', f'kill -9 {os.getpid()}; sleep 60'])",
}


@pytest.mark.parametrize("death", DEATHS)
def test_x01_a_context_that_dies_is_reported_and_replaced(death, make):
    """Within two seconds: the error says how it died and that the state is lost; the next cell has a fresh one."""
    mine = make()
    mine.run("kept = 1")
    execution = within(2, lambda: mine.sandbox.run_code(DEATHS[death]))
    assert execution.error is not None
    assert execution.error.kind == "context_died"
    assert execution.state_lost
    assert mine.run("print('kept' in globals())") == "False\n"

    control = subprocess.run(
        [sys.executable, "-c", DEATHS[death]], stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert control.returncode != 0


def test_x01_a_context_that_another_process_kills_is_reported_too(make):
    """Whoever of the same sandbox did it, the host is told the truth."""
    mine = make()
    other = mine.sandbox.create_code_context()
    pid = int("".join(mine.sandbox.run_code("import os; print(os.getpid())", context=other).logs.stdout))
    mine.sandbox.commands.run(["kill", "-9", str(pid)])
    first = mine.sandbox.run_code("1", context=other)
    assert first.error is None or first.error.kind == "context_died"
    assert mine.sandbox.run_code("2", context=other).text == "2"
    assert mine.run("print(3)") == "3\n"


def init_of(marker: str) -> int:
    """The host's number of the init above the process with this marker."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() not in (folder / "environ").read_bytes():
                continue

            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
        except OSError:
            continue

        if len(status["NSpid"].split()) < 3:
            continue

        return int(status["PPid"])

    raise AssertionError("the sandbox is nowhere to be seen")


@pytest.fixture
def victim(make):
    """A sandbox, and the host's number of its init."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to look into processes of other ids")

    mine = make()
    marker = secrets.token_hex(16)
    mine.sandbox.commands.run(["sleep", "600"], envs={"MARK": marker}, background=True)
    mine.init = init_of(marker)
    return mine


@pytest.mark.parametrize("during", ["nothing", "a run", "an upload", "a command"])
def test_x02_the_death_of_init_ends_the_sandbox(during, victim):
    """A typed error for whoever waits; no process, control group, mount or id stays behind."""
    busy = threading.Event()

    def upload():
        class Endless:
            def read(self, size):
                busy.set()
                return b"x" * min(size, 1 << 16)

        victim.sandbox.files.write("endless", Endless())

    work = {
        "nothing": busy.set,
        "a run": lambda: victim.sandbox.run_code(
            "print(1)\nwhile True: pass", on_stdout=lambda _: busy.set()
        ),
        "an upload": upload,
        "a command": lambda: victim.sandbox.commands.run("echo 1; sleep 60", on_stdout=lambda _: busy.set()),
    }[during]
    ended: list[BaseException | None] = []

    def run():
        try:
            work()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert busy.wait(DEADLINE_SECONDS)
    os.kill(victim.init, signal.SIGKILL)
    thread.join(DEADLINE_SECONDS)
    assert ended

    if during != "nothing":
        assert isinstance(ended[0], SandboxError) or "Command" in type(ended[0]).__name__, ended

    until(lambda: not victim.sandbox.is_running())

    with pytest.raises(SandboxClosedError):
        victim.sandbox.run_code("1")

    until(lambda: not (Path("/proc") / str(victim.init)).exists())
    until(lambda: not glob.glob(f"/sys/fs/cgroup/**/*{victim.sandbox.id}*", recursive=True))


def test_x02_a_guest_cannot_bring_the_death_of_init_about(make):
    """The controls above need root of the host; from inside the same signal does nothing."""
    mine = make()
    mine.run("import os\ntry: os.kill(1, 9)\nexcept PermissionError: pass")
    assert mine.run("print(1)") == "1\n"
