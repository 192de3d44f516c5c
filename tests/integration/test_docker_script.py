"""`fumehood serve --print-docker`: the script itself, with a stand-in for `docker` that applies the options to root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ENGINE = Path(__file__).with_name("container_engine.py")
LAYERS = (
    "import json; from fumehood import Sandbox\nwith Sandbox() as s:\n"
    "    print(json.dumps({layer.name: layer.state for layer in s.get_info().isolation.layers}))"
)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="a container's root is cut down from root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (package util-linux)"),
]

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell of a user with the stand-in as `docker`; its container ends with the test."""
    programs = tmp_path / "bin"
    programs.mkdir()

    for name, words in (
        ("docker", f"'{sys.executable}' '{ENGINE}'"),
        ("fumehood", f"'{sys.executable}' -m fumehood"),
        ("python", f"'{sys.executable}'"),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)

    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    kept |= {"PATH": f"{programs}:{kept['PATH']}", "CONTAINERS": str(tmp_path)}

    def run(script: str, **envs: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script],
            env=kept | envs,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    yield run

    if (tmp_path / "pid").exists():
        with suppress(ProcessLookupError):
            os.killpg(int((tmp_path / "pid").read_text()), signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_two_commands_and_it_runs(shell: Shell, tmp_path: Path) -> None:
    """The script builds, starts, waits, and prints what clients read; sandboxes are as isolated as elsewhere."""
    done = shell(
        f'eval "$(fumehood serve --print-docker --port {free_port()} --max-sandboxes 7 | sh)" && '
        f"fumehood run -c 'print(6 * 7)' && '{sys.executable}' -c '{LAYERS}'"
    )
    assert done.returncode == 0, f"{done.stderr}\n{(tmp_path / 'log').read_text()}"
    text, layers = done.stdout.splitlines()
    assert text == "42"
    states = json.loads(layers)
    assert {states[name] for name in ("namespaces", "identity", "seccomp", "no new privileges")} == {"on"}
    assert (tmp_path / "Dockerfile").read_text().startswith("FROM python:")


@pytest.mark.parametrize("option", ["seccomp", "systempaths"])
def test_what_is_left_away_is_named(shell: Shell, tmp_path: Path, option: str) -> None:
    """Without an option that Docker's defaults make necessary the script ends, with what `doctor` has found."""
    done = shell(f"fumehood serve --print-docker --port {free_port()} | sh", WITHOUT=option)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--security-opt {option}" in done.stderr, done.stderr
