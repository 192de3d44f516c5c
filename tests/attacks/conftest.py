"""What all attacks share: sandboxes, the probe in every kind of process, its control outside, and canaries.

Every attack is tried twice. Inside, nothing may come of it; outside, the same program must succeed or reach the kernel,
or the test would prove nothing. Controls run as root, who may do everything that a sandbox must forbid.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import Sandbox
from fumehood.scorecard.places import KINDS, ProgramPlace, SandboxPlace

# In the environment of the host process before its first sandbox: no guest may ever see it.
HOST_SECRET = f"canary-{secrets.token_hex(16)}"
os.environ["FUMEHOOD_ATTACK_CANARY"] = HOST_SECRET

Probe = Callable[..., Any]


class Attacked:
    """A sandbox with the attacker's program in its home."""

    def __init__(self, **options: Any) -> None:
        self.sandbox = Sandbox(**options)
        self.place = SandboxPlace(self.sandbox)

    def probe(self, kind: str, name: str, *arguments: Any) -> Any:
        """Runs one probe in a kind of process and returns what it found."""
        return self.place.probe(kind, name, *arguments)

    def run(self, code: str, **options: Any) -> str:
        """Runs a cell that must succeed and returns what it printed."""
        execution = self.sandbox.run_code(code, **options)
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)


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
    place = ProgramPlace("control", str(folder))

    def run(name: str, *arguments: Any, pass_fds: tuple[int, ...] = ()) -> Any:
        return place.probe_with(pass_fds, name, *arguments)

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
