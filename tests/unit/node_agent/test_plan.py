"""What runs on a machine of a cluster: kept in a file, and turned into command lines."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.node_agent.plan import Plan, check_address, check_label, host_part, ray_part, server_part


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The plan of a head with a label, whose host has a name."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "host-id").write_text("abc123\n")
    return Plan(
        state=str(tmp_path),
        head="10.0.0.1:6379",
        node_address="10.0.0.1",
        labels={"zone": "a"},
        server_address="127.0.0.1:8765",
    )


def test_a_plan_is_read_as_it_was_saved(plan: Plan) -> None:
    """`leave` and the node agent find what `up` has decided."""
    plan.save()
    assert Plan.read(plan.folder) == plan


@pytest.mark.parametrize("content", [None, "", "[]", '{"state": "/x", "unknown": 1}'])
def test_a_folder_without_a_plan_is_named(tmp_path: Path, content: str | None) -> None:
    """No file, or one of something else."""
    if content is not None:
        (tmp_path / Plan.FILE).write_text(content)

    with pytest.raises(InvalidArgumentError, match="state-folder"):
        Plan.read(tmp_path)


def test_ray_is_started_with_a_token_and_the_name_of_the_host(plan: Plan) -> None:
    """Never without authentication; the label is how servers find the machine; the head's state is on disk."""
    part = ray_part(plan)
    assert part.envs["RAY_AUTH_MODE"] == "token"
    assert part.envs["RAY_AUTH_TOKEN_PATH"] == str(plan.token_file)
    assert "--labels=zone=a,fumehood-host-id=abc123" in part.argv
    assert {"--head", "--port=6379", "--block", "--num-cpus=0"} <= set(part.argv)
    assert part.envs["RAY_gcs_storage"] == "rocksdb"


def test_rays_sockets_lie_in_a_folder_of_this_user(plan: Plan) -> None:
    """Not in the shared /tmp/ray, where another user can put them first; short enough for the path of a socket."""
    longest = "session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"

    for state in ("/var/lib/fumehood-cluster", "/root/.local/state/fumehood-cluster", f"/home/{'a' * 90}"):
        one = replace(plan, state=state)
        folder = one.ray_folder
        assert str(folder) in (f"{state}/ray", f"/tmp/fh-ray-{os.geteuid()}-{folder.name[-8:]}")
        assert len(f"{folder}/t/{longest}") <= 107
        assert folder != replace(plan, state=f"{state}2").ray_folder

    part = ray_part(plan)
    assert f"--temp-dir={plan.ray_folder}/t" in part.argv
    assert part.private == plan.ray_folder
    assert part.stale == plan.ray_folder / "t" / "ray_current_cluster"


def test_a_machine_that_joins_is_no_head(plan: Plan) -> None:
    """It has the head's address, and no state of its own."""
    part = ray_part(Plan(state=plan.state, head=plan.head, is_head=False, has_host=False))
    assert "--address=10.0.0.1:6379" in part.argv
    assert "--head" not in part.argv
    assert "RAY_gcs_storage" not in part.envs
    assert not any(word.startswith("--labels") for word in part.argv)


def test_host_and_server_meet_at_one_socket_and_one_head(plan: Plan) -> None:
    """The adapter inherits the socket of the host daemon, and the server asks the head with the same token."""
    assert host_part(plan).envs["FUMEHOOD_HOST_SOCKET"] == ray_part(plan).envs["FUMEHOOD_HOST_SOCKET"]
    envs = server_part(plan).envs
    assert (envs["FUMEHOOD_CLUSTER"], envs["FUMEHOOD_HOST"], envs["FUMEHOOD_PORT"]) == (
        "10.0.0.1:6379",
        "127.0.0.1",
        "8765",
    )
    assert os.path.isabs(envs["FUMEHOOD_CLUSTER_TOKEN_FILE"])


@pytest.mark.parametrize("word", ["zone", "=a", "zone=", "ray.io/x=y", "fumehood-host-id=a", "a=b,c=d"])
def test_labels_of_another_form_are_refused(word: str) -> None:
    """Also those that would give the machine another name."""
    with pytest.raises(InvalidArgumentError):
        check_label(word)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "http://host:1"])
def test_addresses_of_another_form_are_refused(address: str) -> None:
    """HOST:PORT, and nothing else."""
    with pytest.raises(InvalidArgumentError):
        check_address("ADDRESS", address)
