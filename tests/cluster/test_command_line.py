"""`fumehood cluster` on one machine: up, status, drain, a part that is killed, leave; nothing is left."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from fumehood.node_agent.plan import STATE_NAME, Plan

from .machines import CLUSTER_PYTHON, Machine, Network, missing


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine on which nothing runs."""
    if why := missing():
        pytest.skip(why)

    network = Network()

    with tempfile.TemporaryDirectory(prefix="fh-", dir="/tmp") as folder:
        machine = Machine(network, 1, Path(folder) / "1")
        yield machine
        machine.end()
        network.close()


def cluster(machine: Machine, *words: str, code: int = 0) -> tuple[str, str]:
    """Run the command on the machine, and return what it printed and what it said."""
    ran = machine.run(CLUSTER_PYTHON, "-m", "fumehood", "cluster", *words)
    assert ran.returncode == code, ran.stderr
    return ran.stdout, ran.stderr


@pytest.mark.timeout(400)
def test_a_machine_goes_up_and_leaves(machine: Machine) -> None:
    """What `up` has started is shown, started again when it is killed, and ended by `leave`."""
    _, said = cluster(machine, "up", "--label", "zone=a")
    assert all(
        word in said
        for word in ("host daemon:", "Ray: head at", "server: http://127.0.0.1:8765", "--address")
    )

    # No port of Ray is reached by another machine, as no address was given; and its sockets by no other user.
    listening = machine.output("ss", "-Hltn").splitlines()
    assert len(listening) > 3
    assert all("127.0.0.1" in line.split()[3] for line in listening), listening
    assert machine.output("ls", "/tmp/ray") == ""
    folder = Plan.read(machine.folder / ".local" / "state" / STATE_NAME).ray_folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "t" / "ray_current_cluster").exists()

    def machines() -> list[dict[str, object]]:
        found, _ = cluster(machine, "status", "--json")
        items: list[dict[str, object]] = json.loads(found)["items"]
        return items

    def state() -> object:
        return next((one["state"] for one in machines()), None)

    until(lambda: state() == "ready", "the machine is ready", seconds=120)
    (only,) = machines()
    assert only["labels"] == {"zone": "a"}
    host_id = str(only["host_id"])
    shown, _ = cluster(machine, "status")
    assert host_id in shown
    assert "zone=a" in shown

    cluster(machine, "drain", host_id, "--wait")
    until(lambda: state() == "draining", "it drains")
    cluster(machine, "drain", host_id, "--undo")
    _, why = cluster(machine, "up", code=64)
    assert "fumehood cluster leave" in why

    # The node agent starts what ends again.
    assert machine.kill("fumehood host") >= 1
    until(lambda: state() == "absent", "the host is gone", seconds=60)
    until(lambda: state() == "ready", "the host is back", seconds=120)

    cluster(machine, "leave")
    _, said = cluster(machine, "leave")
    assert "nothing of a cluster runs here" in said
    until(lambda: not machine.pids("python"), "nothing is left", seconds=60)
    shutil.rmtree(folder)


def test_a_cluster_is_not_joined_without_its_token(machine: Machine) -> None:
    """The file is needed, and its absence is said as that of a file."""
    ran = machine.run(
        CLUSTER_PYTHON, "-m", "fumehood", "cluster", "join", "10.0.0.1:6379", "--token-file", "/nowhere"
    )
    assert ran.returncode == 74
    assert "/nowhere" in ran.stderr


def test_an_empty_token_is_refused(machine: Machine, tmp_path: Path) -> None:
    """A head that took it would be open to all."""
    (tmp_path / "token").write_text("\n")
    _, why = cluster(machine, "up", "--token-file", str(tmp_path / "token"), code=64)
    assert "this one is empty" in why
