"""A cluster of two machines: the port through it, placement, draining, and what survives the fastest faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import e2b
import httpx2
import pytest
from tests.contract.conftest import Face, open_face
from tests.waiting import until

from .load import Load, new_sandbox, run
from .machines import ROOT, Cluster

# Makes the template `carried`: an environment with what IPython needs, copied from this one: no index is asked.
_BUILD = """
import os, subprocess, sys, sysconfig
from importlib import metadata
from packaging.requirements import Requirement
from fumehood.assemble import template_store
from fumehood.templates.store import TemplateRecord, new_info
from fumehood.values.template import Template

def needs(name, found):
    if name not in found:
        found.add(name)
        for wanted in map(Requirement, metadata.requires(name) or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                needs(wanted.name, found)
    return found

ours = sysconfig.get_path("purelib")
tops = {str(file).split("/")[0] for name in needs("ipython", set()) for file in metadata.files(name)}
tops = [os.path.join(ours, top) for top in tops if top not in ("..", "bin")]
store = template_store()
template = Template(name="carried", envs={"COLOUR": "red"}, preload=())

with store.building("carried", print), store.new_build("carried") as build:
    environment = os.path.join(build.folder, "environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    theirs = sysconfig.get_path("purelib", vars={"base": environment, "platbase": environment})
    subprocess.run(["cp", "-r", *filter(os.path.exists, tops), theirs], check=True)
    info = new_info(template, version=sys.version_info[:3], size_bytes=0, fingerprint="f")
    store.publish(TemplateRecord(info=info, build=build.name, interpreter="environment/bin/python"))
"""


@pytest.fixture
def face(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """The asynchronous API at the cluster's server."""
    monkeypatch.setenv("FUMEHOOD_URL", cluster.server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", cluster.server.token)

    with open_face("async-cluster") as face:
        yield face


@pytest.fixture
def sandbox(face: Face) -> Any:
    """A sandbox of the cluster."""
    return face.open()


def problem(answer: httpx2.Response) -> tuple[int, str, bool]:
    """What an answer says went wrong."""
    body = answer.json()
    return answer.status_code, body["code"], body["outcome_unknown"]


# -- a part of the contract: one verb of each way through the adapter


def test_code_runs_and_keeps_its_state(sandbox: Any) -> None:
    """Whole answers: variables stay, results and errors are those of a sandbox here."""
    sandbox.run_code("x = 41")
    assert sandbox.run_code("x + 1").text == "42"
    assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"


def test_output_comes_as_it_is_written(sandbox: Any) -> None:
    """Streams: the first line is there while the code still runs."""
    seen: list[str] = []
    code = "import time\nprint('first', flush=True)\nwhile True: time.sleep(0.05)"

    def on_stdout(text: Any) -> None:
        seen.append(str(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.run_code(code, on_stdout=on_stdout)

    assert "first" in seen[0]
    # Leaving the stream has interrupted the code: the context is free.
    assert sandbox.run_code("6 * 7").text == "42"


def test_a_large_file_goes_up_and_comes_back(sandbox: Any) -> None:
    """Uploads and downloads in pieces, larger than what Ray carries within a call."""
    content = bytes(range(256)) * 8192
    sandbox.files.write("large.bin", content)
    assert sandbox.files.read("large.bin", format="bytes") == content


def test_a_port_is_a_connection_in_both_directions(face: Face, cluster: Cluster) -> None:
    """Tunnels: a web server of the guest answers at the address that the cluster's server gives."""
    sandbox = face.open()
    sandbox.commands.run("python -m http.server 8000 >/dev/null 2>&1 &", timeout=30)
    url = sandbox.get_url(8000)

    def is_there() -> bool:
        return httpx2.get(url, timeout=30).status_code == 200

    until(is_there, "the guest's web server answers")


def test_tools_and_checkpoints_work(sandbox: Any) -> None:
    """A tool is called from inside, and a rollback undoes what came after."""
    sandbox.run_code("x = seven()", tools={"seven": lambda: 7})
    checkpoint = sandbox.checkpoint()
    sandbox.run_code("x = 0")
    sandbox.rollback(checkpoint)
    assert sandbox.run_code("x").text == "7"


# -- what is kept of sandboxes


def test_records_of_ended_sandboxes_are_those_of_all_machines(cluster: Cluster, api: httpx2.Client) -> None:
    """Listed by pages, the latest end first; read, run again and deleted on the machine that has them."""
    made = [until_on(api, machine.host_id) for machine in [*cluster.machines, *cluster.machines]]

    for number, name in enumerate(made):
        api.patch(f"/v1/sandboxes/{name}", json={"metadata": {"of": "records"}}).raise_for_status()
        run(api, name, f"{number} * 2")
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204

    def listed() -> list[str]:
        found: list[str] = []
        asked: dict[str, Any] = {"q": "of=records", "limit": 3}

        while True:
            page = api.get("/v1/records", params=asked).json()
            assert page["is_kept"]
            found += [one["sandbox"]["id"] for one in page["items"]]

            if (cursor := page["next_cursor"]) is None:
                return found

            asked["cursor"] = cursor

    until(lambda: len(listed()) == len(made), "all are written")
    assert listed() == made[::-1]
    place = f"/v1/records/{made[1]}"
    assert api.get(place).json()["reason"] == "killed"
    cells = api.get(f"{place}/contexts/default/executions", params={"what": "whole"}).json()["items"]
    assert [cell["code"] for cell in cells] == ["1 * 2"]
    assert api.get(f"{place}/executions/{cells[0]['id']}/results/0/text/plain").content == b"2"
    assert "1 * 2" in api.get(f"{place}/contexts/default/record", params={"form": "ipynb"}).text
    assert api.get(f"{place}/audit").json()["entries"][-1]["kind"] == "ended"
    lines = api.post(f"{place}/replay", json={}, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    again = [line for line in map(json.loads, lines) if line["type"] == "cell"]
    assert [line["differences"] for line in again] == [[]]

    for name in made:
        assert api.delete(f"/v1/records/{name}").status_code == 204

    # The sandbox of the replay has left none.
    assert listed() == []
    unknown = "zzzzzz" + "a" * 26

    for name in (made[0], unknown, "nothing"):
        assert problem(api.get(f"/v1/records/{name}")) == (404, "record_not_found", False)


def test_a_volume_goes_from_machine_to_machine(
    cluster: Cluster, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By E2B's SDK: files of a sandbox on one machine are there in the next one on another, held by one at a time."""
    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
        monkeypatch.setenv(name, cluster.server.url)

    monkeypatch.setenv("E2B_API_KEY", cluster.server.token)
    volume = e2b.Volume.create("carried")
    volume.write_file("from/outside", "outside")
    hosts = {machine.host_id for machine in cluster.machines}
    seen: set[str] = set()
    last = ""

    # Of two machines each time the one is drawn that has less to do.
    for round_ in range(40):
        with e2b.Sandbox.create(timeout=120, volume_mounts={"/mnt/data/kept": volume}) as sandbox:
            seen.add(sandbox.sandbox_id[:6])
            assert sandbox.files.read("/mnt/data/kept/from/outside") == "outside"
            assert not last or sandbox.files.read("/mnt/data/kept/last") == last
            last = f"round {round_} on {sandbox.sandbox_id}"
            sandbox.files.write("/mnt/data/kept/last", last)

            with pytest.raises(Exception, match=f"409.*held by sandbox '{sandbox.sandbox_id}'"):
                volume.write_file("a", "b")

        assert volume.read_file("last") == last

        if seen == hosts:
            break

    assert seen == hosts
    assert e2b.Volume.destroy(volume.volume_id)


# -- placement


def test_sandboxes_are_spread_and_forks_stay_with_their_parent(cluster: Cluster, api: httpx2.Client) -> None:
    """Both machines get sandboxes; a fork is made where its parent is."""
    made = [new_sandbox(api) for _ in range(8)]
    places = Counter(name[:6] for name in made)
    assert set(places) == {machine.host_id for machine in cluster.machines}
    forks = api.post(f"/v1/sandboxes/{made[0]}/forks", json={"count": 2}).json()["items"]
    assert {fork["id"][:6] for fork in forks} == {made[0][:6]}
    listed = {one["id"] for one in api.get("/v1/sandboxes").json()["items"]}
    assert listed == {*made, *(fork["id"] for fork in forks)}

    for name in listed:
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204


def test_a_label_chooses_among_the_machines_that_have_it(cluster: Cluster, api: httpx2.Client) -> None:
    """A sandbox and a stateless run; a label that no machine has is no room, and says which label."""
    wanted = {"labels": {"zone": "b"}}
    made = [new_sandbox(api, **wanted) for _ in range(4)]
    assert {name[:6] for name in made} == {cluster.machines[1].host_id}
    answer = api.post("/v1/execute", json={"code": "6 * 7", **wanted})
    assert answer.json()["execution"]["text"] == "42", answer.text

    refused = api.post("/v1/sandboxes", json={"labels": {"zone": "north"}})
    assert problem(refused) == (503, "capacity", False)
    assert "with zone=north" in refused.json()["detail"]

    for name in made:
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204


def test_a_template_is_brought_to_a_machine_that_lacks_it(cluster: Cluster, api: httpx2.Client) -> None:
    """Built on the first machine, used on the second: once by two callers at the same time, and again later."""
    first, second = cluster.machines
    built = first.run(sys.executable, "-c", _BUILD)
    assert built.returncode == 0, built.stderr
    until(lambda: "carried" in templates_of(api, first.host_id), "the server knows of it")
    assert "carried" not in templates_of(api, second.host_id)

    wanted = {"template": "carried", "labels": {"zone": "b"}}
    code = "import os, sys; (os.environ['COLOUR'], sys.prefix)"

    with ThreadPoolExecutor(2) as callers:
        made = list(callers.map(lambda _: new_sandbox(api, **wanted), range(2)))

    made.append(new_sandbox(api, **wanted))
    assert {name[:6] for name in made} == {second.host_id}
    answers = {run(api, name, code)["text"] for name in made}
    assert len(answers) == 1
    assert "red" in answers.pop()
    assert first.log.read_text().count("a template was sent to a machine") == 1
    until(lambda: "carried" in templates_of(api, second.host_id), "the server knows of it there")

    # Built anew on the second machine: the first gets that build before its next sandbox is made.
    built = second.run(sys.executable, "-c", _BUILD.replace("red", "blue"))
    assert built.returncode == 0, built.stderr

    def is_blue_on_the_first() -> bool:
        made.append(new_sandbox(api, template="carried", labels={"zone": "a"}))
        assert made[-1].startswith(first.host_id)
        return "blue" in run(api, made[-1], code)["text"]

    until(is_blue_on_the_first, "the first machine has the later build")
    assert first.log.read_text().count("a template was sent to a machine") == 2

    for name in made:
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204


def test_a_drained_machine_gets_nothing_new(cluster: Cluster, api: httpx2.Client) -> None:
    """Its sandboxes live on and may be forked; new ones come to the other, and with none left 503 says when to ask."""
    first, second = (machine.host_id for machine in cluster.machines)
    mine = until_on(api, second)
    assert api.put(f"/v1/machines/{second}/draining", json={"is_draining": True}).status_code == 204
    until(lambda: state_of(api, second) == "draining", "the server knows that it drains")
    assert {new_sandbox(api)[:6] for _ in range(6)} == {first}
    assert run(api, mine, "6 * 7")["text"] == "42"
    assert api.post(f"/v1/sandboxes/{mine}/forks", json={"count": 1}).status_code == 201

    assert api.put(f"/v1/machines/{first}/draining", json={"is_draining": True}).status_code == 204
    until(lambda: state_of(api, first) == "draining", "the server knows that it drains")

    for refused in (api.post("/v1/sandboxes", json={}), api.post("/v1/execute", json={"code": "1"})):
        assert problem(refused) == (503, "capacity", False)
        assert int(refused.headers["retry-after"]) >= 1

    for name in (first, second):
        assert api.put(f"/v1/machines/{name}/draining", json={"is_draining": False}).status_code == 204
        until(lambda name=name: state_of(api, name) == "ready", "it is used again")

    assert problem(api.put("/v1/machines/unknown/draining", json={"is_draining": True})) == (
        422,
        "invalid_argument",
        False,
    )


def test_a_batch_is_answered_once_for_each(cluster: Cluster, api: httpx2.Client) -> None:
    """Its runs go to the machines together; the reader leaves in the middle and reads on; errors are their own."""
    codes = ["1 / 0" if number % 10 == 9 else f"{number} * 2" for number in range(80)]
    requests = [{"code": code} for code in codes]
    requests.append({"code": "while True: pass", "timeout_seconds": 0.5})
    requests.append({"code": "1", "labels": {"zone": "nowhere"}})
    lines: list[dict[str, Any]] = []

    with api.stream("POST", "/v1/execute/batch", json={"requests": requests, "resumable": True}) as answer:
        coming = answer.iter_lines()
        name = json.loads(next(coming))["batch_id"]
        lines += [json.loads(next(coming)) for _ in range(20)]

    read_on = f"/v1/execute/batch/{name}?cursor={lines[-1]['cursor']}"
    lines += [json.loads(line) for line in api.get(read_on).text.splitlines()]
    answers = {line["index"]: line for line in lines if "index" in line}
    assert len(answers) == len(requests) == sum("index" in line for line in lines)
    assert answers.pop(81)["problem"]["code"] == "capacity"
    assert answers.pop(80)["reply"]["execution"]["error"]["kind"] == "time_limit"
    executions = [answers[number]["reply"]["execution"] for number in range(80)]
    assert [one["text"] for one in executions if one["error"] is None] == [
        str(number * 2) for number in range(80) if number % 10 != 9
    ]
    assert sum(one["error"] is not None for one in executions) == 8


def test_the_example_of_agents_runs_on_a_cluster(cluster: Cluster) -> None:
    """`examples/repair_tasks.py`: agents with a shell each, and patches judged in fresh sandboxes."""
    envs = {**os.environ, "FUMEHOOD_URL": cluster.server.url, "FUMEHOOD_API_KEY": cluster.server.token}
    words = [sys.executable, str(ROOT / "examples" / "repair_tasks.py")]
    said = subprocess.run(words, env=envs, capture_output=True, text=True, timeout=300, check=False)
    assert said.returncode == 0, said.stderr
    *_, verdict, sum_ = said.stdout.splitlines()
    assert (verdict, sum_[:15]) == ("words    not resolved", "3 of 4 resolved")


def test_ids_that_were_never_made_are_not_found(api: httpx2.Client) -> None:
    """An id of an unknown machine, and one that is no id at all."""
    for name in ("zzzzzz" + "a" * 26, "nothing"):
        assert problem(api.get(f"/v1/sandboxes/{name}")) == (404, "sandbox_not_found", False)
        assert api.delete(f"/v1/sandboxes/{name}").status_code in (204, 404)


def templates_of(api: httpx2.Client, host_id: str) -> list[str]:
    """The templates that the server knows of on a machine."""
    found: list[str] = next(
        one["templates"] for one in api.get("/v1/machines").json()["items"] if one["host_id"] == host_id
    )
    return found


def state_of(api: httpx2.Client, host_id: str) -> str:
    """What the server says of a machine."""
    return next(one["state"] for one in api.get("/v1/machines").json()["items"] if one["host_id"] == host_id)


def until_on(api: httpx2.Client, host_id: str) -> str:
    """Make sandboxes until one is on this machine, and return it; the others are ended."""
    while (name := new_sandbox(api))[:6] != host_id:
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204

    return name


# -- what survives


def test_sandboxes_outlive_the_adapter(cluster: Cluster, api: httpx2.Client) -> None:
    """Calls to its machine fail with an error that says what is known; the sandboxes and their variables are there."""
    machine = cluster.machines[1]
    on_it, elsewhere = until_on(api, machine.host_id), until_on(api, cluster.head.host_id)
    run(api, on_it, "x = 41")
    load = Load(cluster.server, [on_it, elsewhere])
    load.run_for(1.0)
    assert machine.kill("ray::HostAdapter") == 1
    load.until_well_again(on_it, seconds=60)
    told = load.end()
    assert run(api, on_it, "x + 1")["text"] == "42"
    assert told[elsewhere].errors == Counter()
    assert set(told[on_it].errors) <= {("host_unavailable", True), ("host_unavailable", False)}


def test_a_sandbox_that_dies_takes_nothing_along(cluster: Cluster, api: httpx2.Client) -> None:
    """Its own calls say that it has ended; the others on its machine have no error."""
    host_id = cluster.head.host_id
    dying, other = until_on(api, host_id), until_on(api, host_id)
    load = Load(cluster.server, [other])
    api.post(f"/v1/sandboxes/{dying}/executions", json={"code": "import os; os.kill(1, 9); os.abort()"})
    # A guest cannot kill its init; the owner can, which looks the same to later callers.
    assert api.delete(f"/v1/sandboxes/{dying}").status_code == 204
    assert problem(api.get(f"/v1/sandboxes/{dying}")) == (410, "sandbox_closed", False)
    assert load.end()[other].errors == Counter()


def test_a_restarted_host_daemon_is_reported_as_it_is(cluster: Cluster, api: httpx2.Client) -> None:
    """Its sandboxes are lost, by a definite answer; new ones are made at once on the other machine, later there too.

    Also by a daemon of an earlier version.
    """
    machine = cluster.machines[1]
    lost = until_on(api, machine.host_id)
    machine.kill_part("host")
    until(lambda: state_of(api, machine.host_id) == "absent", "the server sees that the daemon has gone")
    assert problem(api.get(f"/v1/sandboxes/{lost}")) == (503, "host_unavailable", False)
    assert new_sandbox(api)[:6] == cluster.head.host_id
    machine.start_host(is_older=True)
    until(lambda: state_of(api, machine.host_id) == "ready", "the daemon is back", seconds=60)
    older_host_is_used(api, machine.host_id)
    machine.kill_part("host")
    until(lambda: state_of(api, machine.host_id) == "absent", "the server sees that the daemon has gone")
    machine.start_host()
    until(lambda: state_of(api, machine.host_id) == "ready", "the daemon is back", seconds=60)

    answer = api.get(f"/v1/sandboxes/{lost}")
    assert problem(answer) == (410, "sandbox_closed", False)
    assert answer.json()["fields"]["reason"] == "lost"
    assert run(api, until_on(api, machine.host_id), "6 * 7")["text"] == "42"


def older_host_is_used(api: httpx2.Client, host_id: str) -> None:
    """A host daemon of an earlier version does what it knows; for the rest the other machine is asked, if it may be."""
    there = {"labels": {"zone": "b"}}
    answer = api.post("/v1/execute", json={"code": "6 * 7", **there})
    assert answer.status_code == 200, answer.text
    assert answer.json()["execution"]["text"] == "42"
    requests = [{"code": f"{number} * 2", **there} for number in range(4)]
    lines = api.post("/v1/execute/batch", json={"requests": requests}).text.splitlines()
    answers = {line["index"]: line for line in map(json.loads, lines) if "index" in line}
    assert [answers[number]["reply"]["execution"]["text"] for number in range(4)] == ["0", "2", "4", "6"]

    refused = api.post("/v1/sandboxes", json={"on_host_loss": "restore", **there})
    assert problem(refused) == (501, "host_version", False)
    assert "on_host_loss of POST /v1/sandboxes" in refused.json()["detail"]
    assert {new_sandbox(api, on_host_loss="restore")[:6] for _ in range(4)}.isdisjoint({host_id})


# -- the border


def test_guests_reach_no_port_of_ray(cluster: Cluster, api: httpx2.Client) -> None:
    """The machine itself reaches the head's port; a guest there, also one with the internet, does not."""
    port = f"{cluster.head.address} 6379"
    attempt = (
        "import socket\n"
        "def reach(host, port):\n"
        "    try:\n"
        "        socket.create_connection((host, port), 3).close()\n"
        "        return 'reached'\n"
        "    except OSError as error:\n"
        "        return type(error).__name__\n"
    )
    host, number = port.split()
    machine = cluster.machines[1]
    probe = f"{attempt}print(reach({host!r}, {number}))"
    assert machine.output("python3", "-c", probe).strip() == "reached"
    sandbox_id = until_on(api, machine.host_id)
    told = run(
        api,
        sandbox_id,
        f"{attempt}reach({host!r}, {number}), reach({machine.address!r}, 22), reach('127.0.0.1', 6379)",
    )
    assert "reached" not in told["text"]
    # Nor does anything of Ray, or its token, stand in the guest's environment or files.
    found = run(
        api, sandbox_id, "import os, glob; [k for k in os.environ if 'RAY' in k], glob.glob('/tmp/ray*')"
    )
    assert found["text"] == "([], [])"


def test_ray_takes_no_process_without_the_token(cluster: Cluster) -> None:
    """Another process on the machine, without the token, is refused by Ray; with it, it is taken."""
    code = (
        "import os, ray\n"
        "try:\n"
        f"    ray.init(address='{cluster.head.address}:6379', log_to_driver=False)\n"
        "    print('taken')\n"
        "except Exception as error:\n"
        "    print('refused', type(error).__name__)\n"
    )
    from .machines import CLUSTER_PYTHON

    machine = cluster.machines[1]
    wrong = machine.folder / "wrong.token"
    wrong.write_text("0" * 64)
    plain = ["env", "RAY_AUTH_MODE=token"]
    assert (
        machine.output(
            *plain, f"RAY_AUTH_TOKEN_PATH={machine.token_file}", CLUSTER_PYTHON, "-c", code
        ).strip()
        == "taken"
    )
    refused = machine.output(*plain, f"RAY_AUTH_TOKEN_PATH={wrong}", CLUSTER_PYTHON, "-c", code)
    assert refused.startswith("refused")
