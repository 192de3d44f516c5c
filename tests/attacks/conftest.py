"""What all attacks share: sandboxes, the probe in every kind of process, its control outside, and canaries.

Every attack is tried twice. Inside, nothing may come of it; outside, the same program must succeed or reach the kernel,
or the test would prove nothing. Controls run as root, who may do everything that a sandbox must forbid.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import Sandbox
from fumehood_jail import seccomp, syscalls

# The attacker's program, and what it needs beside it.
PROBE = Path(__file__).with_name("probe.py")
SURROUNDINGS = PROBE.with_name("surroundings.py")
NUMBERS = Path(seccomp.POLICIES, f"syscalls_{syscalls.MACHINE}.json")
KINDS = ("context", "child", "command", "pty", "task")

# In the environment of the host process before its first sandbox: no guest may ever see it.
HOST_SECRET = f"canary-{secrets.token_hex(16)}"
os.environ["FUMEHOOD_ATTACK_CANARY"] = HOST_SECRET

Probe = Callable[..., Any]


class Attacked:
    """A sandbox with the probe in its home."""

    def __init__(self, **options: Any) -> None:
        self.sandbox = Sandbox(**options)
        self.sandbox.files.write("probe.py", PROBE.read_bytes())
        self.sandbox.files.write("surroundings.py", SURROUNDINGS.read_bytes())
        self.sandbox.files.write("numbers.json", NUMBERS.read_bytes())

    def probe(self, kind: str, name: str, *arguments: Any) -> Any:
        """Runs one probe in a kind of process and returns what it found."""
        words = ["python3", "/home/user/probe.py", name, json.dumps(arguments)]

        if kind == "command":
            return _answer(self.sandbox.commands.run(words).stdout)

        if kind == "pty":
            return _answer(self._type(words))

        return _answer(self.run(_CELLS[kind].format(name=name, arguments=arguments, words=words)))

    def run(self, code: str, **options: Any) -> str:
        """Runs a cell that must succeed and returns what it printed."""
        execution = self.sandbox.run_code(code, **options)
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)

    def _type(self, words: list[str]) -> str:
        quoted = " ".join(f"'{word}'" for word in words)
        with_terminal = self.sandbox.pty.create(cols=200)
        with_terminal.send(f"exec {quoted}\n")
        return b"".join(with_terminal).decode("utf-8", "replace")


_CELLS = {
    "context": "import probe\nprint('<<' + probe.report({name!r}, *{arguments!r}) + '>>')",
    "child": (
        "import subprocess\n"
        "print(subprocess.run({words!r}, stdout=subprocess.PIPE, text=True, check=True).stdout)"
    ),
    "task": (
        "import asyncio, probe\n"
        "async def attack():\n"
        "    return probe.report({name!r}, *{arguments!r})\n"
        "print('<<' + await asyncio.create_task(attack()) + '>>')"
    ),
}


def _answer(text: str) -> Any:
    # A terminal echoes what is typed into it, so the last one counts; it may also have wrapped the line.
    found = re.findall(r"<<(.*?)>>", text.replace("\r", "").replace("\n", ""))
    assert found, text
    return json.loads(found[-1])


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    """A sandbox for attacks that leave it whole."""
    shared = Attacked()
    yield shared
    shared.sandbox.kill()


@pytest.fixture(params=KINDS)
def inside(request: pytest.FixtureRequest, attacked: Attacked) -> Probe:
    """Runs a probe inside, once in each kind of process."""

    def run(name: str, *arguments: Any) -> Any:
        return attacked.probe(request.param, name, *arguments)

    run.kind = request.param  # type: ignore[attr-defined]
    return run


@pytest.fixture
def make() -> Iterator[Callable[..., Attacked]]:
    """Makes sandboxes of a test's own."""
    made: list[Attacked] = []

    def open_one(**options: Any) -> Attacked:
        made.append(Attacked(**options))
        return made[-1]

    yield open_one

    for one in made:
        one.sandbox.kill()


@pytest.fixture
def outside(tmp_path: Path) -> Probe:
    """Runs a probe as root without any sandbox: the positive control."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the positive control may do everything")

    folder = tmp_path / "control"
    folder.mkdir()
    shutil.copy(PROBE, folder)
    shutil.copy(SURROUNDINGS, folder)
    shutil.copy(NUMBERS, folder / "numbers.json")

    def run(name: str, *arguments: Any, **options: Any) -> Any:
        words = [sys.executable, str(folder / "probe.py"), name, json.dumps(arguments)]
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            start_new_session=True,
            cwd=folder,
            timeout=30,
            **options,
        )
        return _answer(done.stdout)

    run.folder = folder  # type: ignore[attr-defined]
    return run


@pytest.fixture
def canary() -> str:
    """A string that exists nowhere else."""
    return f"canary-{secrets.token_hex(16)}"


@pytest.fixture
def needs_cgroups(attacked: Attacked) -> None:
    """Destructive attacks are tried only where a control group holds them."""
    layers = {layer.name: layer.state for layer in attacked.sandbox.get_info().isolation.layers}

    if layers.get("cgroup memory") != "on" or layers.get("cgroup pids") != "on":
        pytest.skip("needs cgroup v1 or v2 that can be written: this attack would hit the machine")


@pytest.fixture
def host_secret() -> str:
    """What stands in the environment of the host process."""
    return HOST_SECRET


@pytest.fixture
def host_memory() -> Callable[[], int]:
    """Tells the resident memory of this process, in bytes."""
    return lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def host_descriptors() -> Callable[[], int]:
    """Tells how many descriptors this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))
