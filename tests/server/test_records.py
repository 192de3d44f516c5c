"""Records of sandboxes that have ended: kept only where that is set, for the key that owned them, and run again."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer

from fumehood import CommandExitError, RecordNotFoundError, Records, Sandbox, replay
from fumehood.cli.main import main

CELLS = ("import secrets\nprint('hello')\nsum(range(10**6)) and 6 * 7", "secrets.token_hex(4)", "1 / 0")


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that keeps records."""
    running = RunningServer(
        tmp_path_factory.mktemp("records") / "state", pool_size=0, records="keep", sandbox_seconds=0
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def owner(keeping: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=keeping.url, headers=keeping.headers, timeout=60) as client:
        yield client


def key_of(client: httpx2.Client, url: str, **given: Any) -> tuple[str, httpx2.Client]:
    """A new key: its token, and a client with it."""
    token = client.post("/v1/keys", json={"name": "a key", **given}).json()["token"]
    return token, httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


@pytest.fixture(scope="module")
def ended(keeping: RunningServer, owner: httpx2.Client) -> Iterator[tuple[str, str, httpx2.Client]]:
    """A sandbox of a key that has ended while a cell ran: its id, the key's token and client."""
    token, client = key_of(owner, keeping.url)
    sandbox = Sandbox(url=keeping.url, api_key=token, metadata={"team": "blue"})

    for code in CELLS:
        sandbox.run_code(code)

    with pytest.raises(CommandExitError):
        sandbox.commands.run("echo from a command; printf '\\377' >&2; exit 7", envs={"PASSWORD": "hush"})

    sandbox.commands.run("echo begun; sleep 600", background=True)
    begun = client.post(
        f"/v1/sandboxes/{sandbox.id}/executions",
        json={"code": "print('to the end')\nimport time\ntime.sleep(600)", "detached": True},
    ).json()
    place = f"/v1/sandboxes/{sandbox.id}/executions/{begun['id']}"

    while "execution" not in (cell := client.get(place).json()) or not cell["execution"]["logs"]["entries"]:
        pass

    sandbox.kill()
    yield sandbox.id, token, client
    client.close()


def test_what_ran_is_there_after_the_end(ended: tuple[str, str, httpx2.Client], owner: httpx2.Client) -> None:
    """List, description, cells, result, file and audit record; the cell that ran at the end is the last one."""
    ended_id, _, client = ended
    place = f"/v1/records/{ended_id}"
    listed = client.get("/v1/records", params={"q": "TEAM=blue"}).json()
    assert listed["is_kept"]
    assert [one["sandbox"]["id"] for one in listed["items"]] == [ended_id]
    assert client.get("/v1/records", params={"q": "no such text"}).json()["items"] == []
    about = client.get(place).json()
    assert (about["reason"], about["sandbox"]["metadata"]) == ("killed", {"team": "blue"})
    assert (about["failed"], about["last_outcome"]) == (2, "context_died")
    assert about["contexts"] == [{"id": "default", "language": "python", "cells": 4}]
    assert about["cpu_seconds"] > 0
    page = client.get(f"{place}/contexts/default/executions", params={"what": "whole"}).json()
    assert [cell["code"] for cell in page["items"][:3]] == list(CELLS)
    assert page["items"][0]["by"] != "owner"
    assert page["items"][0]["execution"]["logs"]["entries"][0]["text"] == "hello\n"
    assert page["items"][3]["execution"]["logs"]["entries"][0]["text"] == "to the end\n"
    older = client.get(f"{place}/contexts/default/executions", params={"before": 1}).json()
    assert [cell["position"] for cell in older["items"]] == [0]
    cell = f"{place}/executions/{page['items'][0]['id']}"
    assert client.get(cell).json()["usage"]["wall_seconds"] > 0
    assert client.get(f"{cell}/results/0/text/plain").content == b"42"
    notebook = client.get(f"{place}/contexts/default/record", params={"form": "ipynb"})
    assert len(json.loads(notebook.text)["cells"]) >= 4
    assert "sandbox" in notebook.headers["content-security-policy"]
    kinds = [entry["kind"] for entry in client.get(f"{place}/audit").json()["entries"]]
    assert (kinds[0], kinds[-1]) == ("created", "ended")
    assert client.get(f"{place}/contexts/none/executions").status_code == 404
    assert client.get(f"{place}/executions/none").status_code == 404
    # The owner of the server sees those of all keys.
    assert owner.get(place).status_code == 200


def test_commands_are_there_after_the_end(
    ended: tuple[str, str, httpx2.Client],
    keeping: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Over HTTP, in Python and by `fumehood logs`, with code, output and exit code, and no variable of theirs."""
    ended_id, token, client = ended
    page = Records(url=keeping.url, api_key=token).commands(ended_id)
    assert [one.exit_code for one in page.items] == [7, None]
    assert [(one.stream, one.text, one.data) for one in page.items[0].output] == [
        ("stdout", "from a command\n", None),
        ("stderr", "\ufffd", b"\xff"),
    ]
    assert Records(url=keeping.url, api_key=token).commands(ended_id, after=0).items == page.items[1:]
    answer = client.get(f"/v1/records/{ended_id}/commands/history", params={"limit": 1}).json()
    assert (len(answer["items"]), answer["next_cursor"], answer["dropped_commands"]) == (1, 0, 0)
    assert client.get(f"/v1/records/{ended_id}").json()["commands"] == 2
    assert "hush" not in (keeping.state / "records" / f"{ended_id}.record").read_text()

    monkeypatch.setenv("FUMEHOOD_URL", keeping.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", token)
    assert main(["logs", ended_id]) == 0
    shown = capsys.readouterr()
    assert (
        shown.out
        == "hello\n42\n" + shown.out[9:].partition("\n")[0] + "\nfrom a command\nbegun\nto the end\n"
    )
    assert "ZeroDivisionError" in shown.err
    # What the command wrote ended in a line.
    assert "\ufffd\n    exit code 7\n" in shown.err
    assert "fumehood: it ran until the sandbox ended\n" in shown.err
    assert shown.err.splitlines()[-1].startswith("fumehood: it has ended (killed, ")

    assert main(["logs", ended_id[-6:], "--follow", "--tail", "2", "--quiet"]) == 0
    assert capsys.readouterr().out == "begun\nto the end\n"
    assert main(["logs", ended_id, "--json", "--tail", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [len(data["cells"]), len(data["commands"])] == [1, 1]


def test_it_runs_again_and_the_cell_that_differs_is_named(
    ended: tuple[str, str, httpx2.Client], keeping: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over HTTP, at the command line, and in Python: the second cell gives another token each time."""
    ended_id, token, client = ended
    with replay_lines(client, ended_id) as coming:
        seen = [*coming]

    cells = [one for one in seen if one["type"] == "cell"]
    assert [bool(cell["differences"]) for cell in cells] == [False, True, False, False]
    # The last cell never ended, and would not again.
    assert [cell["skip_reason"] for cell in cells] == ["", "", "", "ended"]
    assert cells[1]["differences"][0]["what"] == "result 1 text/plain"
    # The sandbox of a replay ends with it, and leaves no record.
    while client.get("/v1/sandboxes").json()["items"]:
        pass

    assert len(client.get("/v1/records").json()["items"]) == 1

    with Sandbox(url=keeping.url, api_key=token) as sandbox:
        sandbox.run_code("x = 20\nx")
        sandbox.run_code("import time\ntime.time()")
        sandbox.files.write("given.txt", "here")
        sandbox.run_code("open('given.txt').read()")
        shell = sandbox.create_code_context(language="bash")
        sandbox.run_code("echo in bash", context=shell)

    name = sandbox.id
    words = ["--url", keeping.url, "--api-key", token]

    # Whether by its whole id or by a part, which only a record has: both name the way to it.
    for given in (name, name[-8:]):
        assert main(["exec", given, "1", *words]) == 70
        assert (
            f"its record is kept: `fumehood logs {name}` prints what ran, "
            f"`fumehood records replay {name}` runs it again" in capsys.readouterr().err
        )

    assert main(["records", "replay", name, *words]) == 1
    out, err = capsys.readouterr()
    assert "[1] same: x = 20" in out
    assert "[2] differs" in out
    assert "the first that differs is [2]" in err
    assert "files that were uploaded and commands are not replayed" in err
    record = Records(url=keeping.url, api_key=token).get(name)
    report = replay(record, url=keeping.url, api_key=token)
    assert report.first_difference is not None
    assert report.first_difference.number == 2
    assert main(["records", "list", *words, "--filter", name]) == 0
    assert name in capsys.readouterr().out
    assert main(["records", "--filter", "alpha", *words]) == 0
    assert (
        "no record has 'alpha' in its id, template, id of its key, reason or a label"
        in capsys.readouterr().err
    )
    assert main(["records", "show", name, *words]) == 0
    shown = capsys.readouterr().err
    assert "x = 20" in shown
    assert f"1 cell in the context '{shell.id}': `--context {shell.id}`" in shown
    assert main(["records", "show", name, "--context", shell.id, *words]) == 0
    assert "3 cells in the context 'default'" in capsys.readouterr().err
    assert main(["records", "show", name, "--audit", *words]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["kind"] == "ended"
    assert main(["records", "delete", name, *words]) == 0
    assert main(["records", "delete", name, *words]) == 1


@contextmanager
def replay_lines(client: httpx2.Client, ended_id: str) -> Iterator[Iterator[Any]]:
    """The lines of a replay, as they come; who leaves before the last one has gone."""
    headers = {"Accept": "application/x-ndjson"}

    with client.stream("POST", f"/v1/records/{ended_id}/replay", json={}, headers=headers) as answer:
        yield map(json.loads, answer.iter_lines())


def test_a_replay_keeps_the_time_limits(keeping: RunningServer, owner: httpx2.Client) -> None:
    """A cell has the time that it had, and one that was interrupted does not run on."""
    token, client = key_of(owner, keeping.url)

    with Sandbox(url=keeping.url, api_key=token) as sandbox:
        sandbox.run_code("import time\ntime.sleep(600)", timeout=0.5)
        begun = client.post(
            f"/v1/sandboxes/{sandbox.id}/executions",
            json={"code": "print(1)\ntime.sleep(600)", "detached": True},
        ).json()
        assert client.post(f"/v1/sandboxes/{sandbox.id}/contexts/default/interrupt").status_code < 300
        place = f"/v1/sandboxes/{sandbox.id}/executions/{begun['id']}"

        while client.get(place).json()["state"] != "ended":
            pass

        sandbox.files.write("/tmp/seen", "")
        sandbox.run_code("import os\nwhile not os.path.exists('/tmp/seen'): time.sleep(0.01)")

    lines = []

    with replay_lines(client, sandbox.id) as coming:
        for line in coming:
            lines.append(line)

            if line["type"] == "cell" and line["number"] == 1:
                (replaying,) = owner.get("/v1/sandboxes").json()["items"]
                # Although this server gives sandboxes no end.
                assert replaying["ends_at"] is not None
                # Its last cell waits for this.
                Sandbox.connect(replaying["id"], url=keeping.url, api_key=keeping.token).files.write(
                    "/tmp/seen", ""
                )

    cells = [line for line in lines if line["type"] == "cell"]
    assert [cell["skip_reason"] for cell in cells] == ["", "interrupted", ""]
    assert [cell["differences"] for cell in cells] == [[], [], []]
    assert lines[-1]["same"] == 2
    client.close()


def test_a_replay_ends_its_sandbox_when_its_client_leaves(
    keeping: RunningServer, owner: httpx2.Client
) -> None:
    """Also right after the last cell, when the sandbox is being ended already."""
    with Sandbox(url=keeping.url, api_key=keeping.token) as sandbox:
        sandbox.run_code("1")

    for _ in range(3):
        with httpx2.Client(base_url=keeping.url, headers=keeping.headers, timeout=60) as client:
            with replay_lines(client, sandbox.id) as coming:
                assert next(line for line in coming if line["type"] == "cell")["number"] == 1

    end = time.monotonic() + 30

    while owner.get("/v1/sandboxes").json()["items"]:
        assert time.monotonic() < end, "the sandbox of a replay lives on"


def test_a_record_is_for_its_key_alone(
    ended: tuple[str, str, httpx2.Client], keeping: RunningServer, owner: httpx2.Client
) -> None:
    """Another key finds none of it by any verb; nor does a key without the scope, nor a share of the sandbox."""
    ended_id, token, client = ended
    _, other = key_of(owner, keeping.url)
    _, stateless = key_of(owner, keeping.url, scopes=["execute"])
    place = f"/v1/records/{ended_id}"
    cell = client.get(f"{place}/contexts/default/executions").json()["items"][0]["id"]
    reads = (
        "",
        "/audit",
        "/contexts/default/executions",
        "/contexts/default/record",
        f"/executions/{cell}",
        f"/executions/{cell}/results/0/text/plain",
    )

    with other, stateless:
        for path in reads:
            # Control: its own key reads it.
            assert client.get(place + path).status_code == 200
            refused = other.get(place + path)
            assert (refused.status_code, refused.json()["code"]) == (404, "record_not_found")
            assert ended_id in refused.json()["detail"]
            assert stateless.get(place + path).status_code == 403
            assert httpx2.get(keeping.url + place + path, timeout=60).status_code == 401

        assert other.post(f"{place}/replay", json={}).status_code == 404
        assert other.delete(place).status_code == 404
        assert other.get("/v1/records").json()["items"] == []
        assert other.get("/v1/records", params={"owner": "owner"}).json()["items"] == []
        assert client.get(place).status_code == 200

    with Sandbox(url=keeping.url, api_key=token) as sandbox:
        made = client.post("/v1/shares", json={"sandbox_id": sandbox.id, "shows": ["record", "audit"]}).json()
        path = f"/v1/shares/{made['share']['id']}"
        opened = client.post(f"{path}/open", json={"secret": made["secret"]}).json()

    reader = {"Authorization": f"Bearer {opened['token']}"}

    for path in ("/v1/records", f"/v1/records/{sandbox.id}", place):
        assert httpx2.get(keeping.url + path, headers=reader, timeout=60).status_code == 401


def test_a_fork_that_takes_a_place_leaves_one_record(keeping: RunningServer, owner: httpx2.Client) -> None:
    """While the sandbox lives under its id there is none; at its end there is one, with the cells of the fork."""
    sandbox = Sandbox(url=keeping.url, api_key=keeping.token)
    sandbox.run_code("x = 1")
    child = sandbox.fork()
    child.run_code("x = 2")
    sandbox.adopt(child)
    assert owner.get(f"/v1/records/{sandbox.id}").status_code == 404
    sandbox.kill()
    record = Records(url=keeping.url, api_key=keeping.token).get(sandbox.id)
    assert [cell.code for cell in record.cells] == ["x = 1", "x = 2"]


def test_nothing_is_kept_unless_that_is_set(
    server: Any, api: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off by default; stateless runs leave none even where it is set."""
    with Sandbox(url=server.url, api_key=server.token) as sandbox:
        sandbox.run_code("1")

    assert api.get("/v1/records").json() == {
        "is_kept": False,
        "items": [],
        "next_cursor": None,
        "left_out_hosts": [],
    }
    assert api.get(f"/v1/records/{sandbox.id}").json()["code"] == "record_not_found"
    assert Records(url=server.url, api_key=server.token).list() == []
    assert main(["records", "--filter", "alpha", "--url", server.url, "--api-key", server.token]) == 0
    assert "no record is kept: a server keeps them with" in capsys.readouterr().err

    with pytest.raises(RecordNotFoundError):
        Records(url=server.url, api_key=server.token).audit_log(sandbox.id)


def test_a_key_cannot_keep_its_record_from_the_owner(owner: httpx2.Client) -> None:
    refused = owner.post("/v1/sandboxes", json={"is_recorded": False})

    assert refused.status_code == 422
    assert "is_recorded" in refused.text


def test_stateless_runs_leave_no_record(owner: httpx2.Client) -> None:
    """Millions of them would displace the records of sandboxes."""
    before = owner.get("/v1/records").json()["items"]
    assert owner.post("/v1/execute", json={"code": "1"}).status_code == 200
    assert owner.get("/v1/records").json()["items"] == before


def test_records_outlive_the_server_within_their_bounds(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    """Those that the server's end ended are kept; the next server reads them, for the owner of its folder alone."""
    state = tmp_path / "state"
    first = start_server(state, pool_size=0, dialects="", records="keep")
    made = [
        httpx2.post(f"{first.url}/v1/sandboxes", headers=first.headers, json={}, timeout=60) for _ in range(2)
    ]
    ids = [answer.json()["id"] for answer in made]
    assert first.stop() == 0
    files = sorted((state / "records").iterdir())
    assert [path.name for path in files] == sorted(f"{one}.record" for one in ids)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((state / "records").stat().st_mode) == 0o700
    second = start_server(state, pool_size=0, dialects="", records="keep", records_count=1)
    found = Records(url=second.url, api_key=second.token).list()
    assert [one.reason for one in found] == ["host_closed"]
    assert [path.stem for path in (state / "records").iterdir()] == [found[0].id]


def test_a_host_daemon_keeps_them_for_the_server_in_front(
    start_server: Callable[..., Any], start_host: Callable[..., Any]
) -> None:
    """The engine that has the sandbox has its record; and the keys of the server see their own."""
    host = start_host(pool_size=0, records="keep")
    server = start_server(pool_size=0, dialects="", host_socket=host.socket)

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        token, other = key_of(client, server.url)

        with other, Sandbox(url=server.url, api_key=server.token) as sandbox:
            sandbox.run_code("print(1)")

        record = Records(url=server.url, api_key=server.token).get(sandbox.id)
        assert record.cells[0].execution.logs.stdout == ["1\n"]
        place = f"/v1/records/{sandbox.id}"
        page = client.get(f"{place}/contexts/default/executions").json()
        assert page["items"][0]["code"] == "print(1)"
        assert Records(url=server.url, api_key=token).list() == []

        with pytest.raises(RecordNotFoundError):
            Records(url=server.url, api_key=token).get(sandbox.id)

        Records(url=server.url, api_key=server.token).delete(sandbox.id)
        assert client.get(place).status_code == 404
