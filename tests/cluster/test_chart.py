"""The chart for Kubernetes: it renders, each object fits its schema, and its containers run commands that exist."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from fumehood.cli.main import root

from .machines import CLUSTER_PYTHON, missing

RENDER = Path(__file__).with_name("render_chart.py")


def render(**values: Any) -> subprocess.CompletedProcess[str]:
    """Render the chart with values of a user's."""
    if why := missing():
        pytest.skip(why)

    return subprocess.run(
        [CLUSTER_PYTHON, RENDER], input=json.dumps(values), capture_output=True, text=True, check=False
    )


def objects(**values: Any) -> list[dict[str, Any]]:
    """The objects of Kubernetes, each checked against its schema."""
    done = render(**values)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def groups(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specs of the pods, by what they are for."""
    (cluster,) = (one["spec"] for one in found if one["kind"] == "RayCluster")
    workers = {one["groupName"]: one["template"]["spec"] for one in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"]["spec"], **workers}


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    """The objects of the chart's own values."""
    return objects()


def test_all_objects_are_there(plain: list[dict[str, Any]]) -> None:
    kinds = sorted(one["kind"] for one in plain)
    policies = ["NetworkPolicy"] * 3
    assert kinds == [*policies, "PersistentVolumeClaim", "RayCluster", "Secret", "Secret", "Service"]


def test_the_commands_of_the_containers_exist(plain: list[dict[str, Any]]) -> None:
    """Each is parsed by the command line, as the container would run it."""
    seen = []

    for pod in groups(plain).values():
        for container in pod["containers"]:
            words = [*container.get("command", ["fumehood"])[1:], *container["args"]]
            command: click.Command = root()

            while isinstance(command, click.Group):
                found = command.get_command(click.Context(command), words.pop(0))
                assert found is not None, container["args"]
                command = found

            command.make_context("fumehood", words)
            seen.append(container["name"])

    assert seen == ["ray-head", "ray-worker", "host", "ray-worker"]


def test_containers_of_sandboxes_hold_neither_token_nor_privileges(plain: list[dict[str, Any]]) -> None:
    """The host daemon shares a socket with Ray's container, and nothing else."""
    pod = groups(plain)["hosts"]
    ray, host = pod["containers"]
    assert pod["hostUsers"] is False
    assert pod["automountServiceAccountToken"] is False
    assert not any("token" in mount["name"] for mount in host["volumeMounts"])
    shared = {mount["name"] for mount in ray["volumeMounts"]} & {
        mount["name"] for mount in host["volumeMounts"]
    }
    assert shared == {"run"}

    for container in (ray, host):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert not context.get("privileged")

    assert host["securityContext"]["capabilities"]["add"] == ["SETUID", "SETGID", "KILL"]
    assert ray["securityContext"]["capabilities"].get("add") is None
    assert host["resources"]["requests"] == host["resources"]["limits"]


def test_values_of_a_user_are_used() -> None:
    """Labels, settings, a database and secrets of the user's own."""
    found = objects(
        image={"repository": "registry.example/fumehood", "tag": "x"},
        auth={"existingSecret": "mine"},
        hosts={"labels": {"zone": "a"}, "env": {"FUMEHOOD_POOL_SIZE": "8"}, "userNamespace": False},
        server={"replicas": 2, "databaseSecret": "db", "env": {"FUMEHOOD_DIALECTS": "e2b"}},
        networkPolicy={"enabled": False},
    )
    pods = groups(found)
    assert "--label=zone=a" in pods["hosts"]["containers"][0]["args"]
    assert {"name": "FUMEHOOD_POOL_SIZE", "value": "8"} in pods["hosts"]["containers"][1]["env"]
    # Without a user namespace of the pod, root in it would be root on the node.
    assert pods["hosts"]["securityContext"]["runAsNonRoot"] is True
    given = {one["name"]: one.get("valueFrom") for one in pods["servers"]["containers"][0]["env"]}
    assert given["FUMEHOOD_TOKEN"] == {"secretKeyRef": {"name": "mine", "key": "token"}}
    assert given["FUMEHOOD_DATABASE_URL"] == {"secretKeyRef": {"name": "db", "key": "url"}}
    assert [one["metadata"]["name"] for one in found if one["kind"] == "Secret"] == ["demo-ray"]
    assert not [one for one in found if one["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"service": {"prot": 80}}, "additional properties 'prot' not allowed"),
        ({"server": {"replicas": 2}}, "server.replicas above 1 needs server.databaseSecret"),
        ({"hosts": {"replicas": 20}}, "hosts.replicas must lie between hosts.min and hosts.max"),
        ({"hosts": {"labels": {"zone": "a,b"}}}, "does not match pattern"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], words: str) -> None:
    done = render(**values)
    assert done.returncode == 1
    assert words in done.stderr
