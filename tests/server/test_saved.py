"""Saved states over plain HTTP: a file to keep, and a sandbox made of an upload."""

from __future__ import annotations

import io
import json
import zipfile

import httpx
import pytest

from fumehood.cli.main import main


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def state(client):
    """The saved state of a sandbox that is gone."""
    made = client.post("/v1/sandboxes", json={"envs": {"GIVEN": "1"}}).json()
    path = f"/v1/sandboxes/{made['id']}"
    client.post(f"{path}/executions", json={"code": "x = [41]; open('f.txt', 'w').write('kept')"})
    answer = client.post(f"{path}/save")
    assert answer.status_code == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    client.delete(path)
    return answer.content


def ids(client):
    return {item["id"] for item in client.get("/v1/sandboxes").json()["items"]}


def upload(client, state, options=None, **others):
    data = {} if options is None else {"options": json.dumps(options)}
    return client.post("/v1/sandboxes/load", files={"state": ("state", state)}, data=data, **others)


def test_it_is_an_archive_that_says_what_is_in_it(state):
    """Any tool opens it."""
    with zipfile.ZipFile(io.BytesIO(state)) as archive:
        assert archive.testzip() is None
        manifest = json.loads(archive.read("manifest.json"))

    assert manifest["contexts"][0]["variables"][0]["name"] == "x"
    assert manifest["envs"] == {"GIVEN": "1"}
    assert [file["path"] for file in manifest["files"] if file["type"] == "file"] == ["/home/user/f.txt"]


def test_an_upload_becomes_a_sandbox(client, state):
    """With what it should be said before it."""
    answer = upload(client, state, {"metadata": {"a": "b"}, "timeout_seconds": 60})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    path = f"/v1/sandboxes/{made['sandbox']['id']}"
    assert made["sandbox"]["metadata"] == {"a": "b"}
    assert made["report"]["contexts"] == {"default": "default"}
    told = client.post(f"{path}/executions", json={"code": "x, open('f.txt').read()"}).json()
    assert told["text"] == "([41], 'kept')"
    client.delete(path)

    answer = upload(client, state, {"files_only": True})
    path = f"/v1/sandboxes/{answer.json()['sandbox']['id']}"
    told = client.post(f"{path}/executions", json={"code": "'x' in globals(), open('f.txt').read()"}).json()
    assert told["text"] == "(False, 'kept')"
    client.delete(path)


def test_what_cannot_be_loaded_leaves_no_sandbox(client, state):
    """Neither a damaged file, nor a form that makes no sense."""
    before = ids(client)
    damaged = upload(client, state[:-40])
    assert (damaged.status_code, damaged.json()["code"]) == (422, "saved_state_damaged")
    assert damaged.json()["fields"]["part"] == "the file"

    for form in (
        {"files": {"state": ("state", state), "more": ("more", state)}},
        {"files": {"state": ("state", state)}, "data": {"other": "{}"}},
        {"files": {"state": ("state", state)}, "data": {"options": "{"}},
        {"files": {"state": ("state", state)}, "data": {"options": '{"timeout_seconds": -1}'}},
        {"files": {"state": ("state", state)}, "data": {"options": '{"unknown": 1}'}},
        {"data": {"options": "{}"}},
        {"content": state},
    ):
        answer = client.post("/v1/sandboxes/load", **form)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), form.keys()

    assert ids(client) <= before


def test_a_state_belongs_to_who_loads_it(client, server, state):
    """Within the limits of the key; and nobody saves a sandbox of somebody else."""
    body = {"name": "t", "scopes": ["sandboxes", "execute"], "policy": {"max_sandboxes": 1}}
    token = client.post("/v1/keys", json=body).json()["token"]

    with httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as tenant:
        first = upload(tenant, state)
        assert first.status_code == 201
        assert upload(tenant, state).status_code == 429
        other = client.post("/v1/sandboxes", json={}).json()["id"]
        assert tenant.post(f"/v1/sandboxes/{other}/save").status_code == 404
        client.delete(f"/v1/sandboxes/{other}")
        tenant.delete(f"/v1/sandboxes/{first.json()['sandbox']['id']}")

    assert httpx.post(f"{server.url}/v1/sandboxes/load", files={"state": state}).status_code == 401


def test_the_command_line_saves_and_loads(client, server, state, tmp_path, capsys, monkeypatch):
    """By the id of a sandbox at a server; what is in a file it tells without one."""
    made = client.post("/v1/sandboxes", json={}).json()["id"]
    client.post(
        f"/v1/sandboxes/{made}/executions", json={"code": "import threading; lock = threading.Lock(); x = 5"}
    )
    place = str(tmp_path / "state")
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", server.token)
    assert main(["save", made, place]) == 0
    said = capsys.readouterr()
    assert "2 variables" in said.out
    assert "without variable lock: TypeError" in said.err
    assert main(["load", place, "--timeout", "60"]) == 0
    loaded = capsys.readouterr().out.strip()
    told = client.post(f"/v1/sandboxes/{loaded}/executions", json={"code": "x"}).json()
    assert told["text"] == "5"
    monkeypatch.delenv("FUMEHOOD_URL")
    monkeypatch.delenv("FUMEHOOD_API_KEY")
    assert main(["load", "--show", "--json", place]) == 0
    assert json.loads(capsys.readouterr().out)["variables"]["default"] == ["x", "threading"]
    assert main(["load", place]) == 64
    assert main(["load", f"{place}.gone", "--show"]) == 70
    assert "`fumehood save SANDBOX PLACE`" in capsys.readouterr().err

    for name in (made, loaded):
        client.delete(f"/v1/sandboxes/{name}")
