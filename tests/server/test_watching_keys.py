"""Keys with the scope `watch`: they see the sandboxes of the key that made them, and change nothing by any route."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute

from fumehood.cli.main import main

from .walking import OPEN, SITE, filled, status_of_upgrade

NewClient = Callable[..., httpx2.Client]
# What any key may: it logs a browser in as itself, and reads what is its own or of no sandbox.
OF_ANY = {"/v1/login", "/v1/login/codes", "/v1/logins", "/v1/logins/{login_id}", "/v1/me", "/v1/info"}


@pytest.fixture
def client_of(server: Any) -> Iterator[NewClient]:
    """Makes a key with the token of another client, and gives a client with it."""
    made: list[httpx2.Client] = []

    def make(maker: httpx2.Client, *scopes: str) -> httpx2.Client:
        answer = maker.post("/v1/keys", json={"name": "-".join(scopes), "scopes": scopes})
        assert answer.status_code == 201, answer.text
        token = answer.json()["token"]
        headers = {"Authorization": f"Bearer {token}", "X-API-Key": token}
        made.append(httpx2.Client(base_url=server.url, headers=headers, timeout=30))
        made[-1].headers["x-test-key"] = answer.json()["key"]["id"]
        return made[-1]

    yield make

    for client in made:
        client.close()


def test_a_watching_key_sees_what_its_maker_has(api: httpx2.Client, client_of: NewClient) -> None:
    """One that the owner made sees all; one that a key made sees that key's, and nothing of others."""
    maker, other = client_of(api, "sandboxes", "keys"), client_of(api, "sandboxes", "execute")
    of_maker, of_owner = client_of(maker, "watch"), client_of(api, "watch")
    own = maker.post("/v1/sandboxes", json={}).json()["id"]
    foreign = other.post("/v1/sandboxes", json={}).json()["id"]

    def seen(client: httpx2.Client) -> set[str]:
        return {one["id"] for one in client.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]}

    assert seen(of_maker) == {own}
    assert {own, foreign} <= seen(of_owner)

    for path in ("", "/audit", "/contexts/default/executions", "/contexts/default/record", "/use", "/family"):
        assert of_maker.get(f"/v1/sandboxes/{own}{path}").status_code == 200, path
        assert of_owner.get(f"/v1/sandboxes/{foreign}{path}").status_code == 200, path
        assert of_maker.get(f"/v1/sandboxes/{foreign}{path}").status_code == 404, path

    with of_maker.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["type"] == "here"
        other.post("/v1/sandboxes", json={})
        made = maker.post("/v1/sandboxes", json={}).json()["id"]
        assert json.loads(next(lines))["sandbox"]["id"] == made

        # Beyond the checks of its right, which come each two seconds; and until its key ends.
        run = {"code": "import time; time.sleep(2.2)"}
        assert maker.post(f"/v1/sandboxes/{own}/executions", json=run).status_code == 200
        last = maker.post("/v1/sandboxes", json={}).json()["id"]
        assert json.loads(next(lines))["sandbox"]["id"] == last
        assert api.delete(f"/v1/keys/{of_maker.headers['x-test-key']}").status_code == 204
        rest = [json.loads(line) for line in lines if line]
        assert rest[-1]["type"] == "problem"

    for client in (maker, other):
        assert api.delete(f"/v1/keys/{client.headers['x-test-key']}").status_code == 204


def test_watching_changes_nothing_by_any_route(
    api: httpx2.Client, client_of: NewClient, routes: list[BaseRoute]
) -> None:
    """Of every dialect too: a paused sandbox stays paused, lives no longer, and has no cell more."""
    holder, watcher = client_of(api, "sandboxes"), client_of(api, "watch")
    made = holder.post("/v1/sandboxes", json={"timeout_seconds": 600, "auto_resume": True}).json()["id"]
    place = f"/v1/sandboxes/{made}"
    cell = holder.post(f"{place}/executions", json={"code": "6 * 7"}).json()["id"]
    assert holder.post(f"{place}/pause").status_code == 200

    def state() -> Any:
        kinds = [entry["kind"] for entry in holder.get(f"{place}/audit").json()["entries"]]
        cells = holder.get(f"{place}/contexts/default/executions").json()["end_position"]
        return holder.get(place).json(), cells, kinds, len(api.get("/v1/keys").json()["items"])

    before, looked = state(), set()

    for route in routes:
        path = str(getattr(route, "path", ""))

        if not path.startswith("/") or path in {*OPEN, *SITE, *OF_ANY, "/openapi.json", "/v1/usage"}:
            continue

        at = path.replace("{execution_id}", cell).replace("{context_id}", "default")
        at = filled(re.sub(r"\{(sandbox|kernel)_id\}", made, at).replace("{number}", "0"))

        if (methods := getattr(route, "methods", None)) is None:
            if path != "/v1/watch":
                assert status_of_upgrade(watcher, at, {}) in (401, 403, 404), path

            continue

        for method in methods:
            body = {} if method in ("POST", "PUT", "PATCH") else None

            with watcher.stream(method, at, json=body) as answer:
                if method in ("GET", "HEAD") and answer.status_code < 400:
                    looked.add(path)
                else:
                    assert 400 <= answer.status_code < 500, (method, path)

    assert {"/v1/sandboxes/{sandbox_id}", "/v1/sandboxes/{sandbox_id}/audit"} <= looked
    # What commands did is a look at the host's memory, as the cells are; the guest is not asked.
    looked.remove("/v1/sandboxes/{sandbox_id}/commands/history")
    assert not any("/files" in path or "/commands" in path or "/ports/{port" in path for path in looked)
    assert state() == before
    # Control: the same with the key that may.
    assert holder.post(f"{place}/executions", json={"code": "1"}).status_code == 200
    assert state() != before
    assert holder.delete(place).status_code == 204


def test_logs_and_watching_keys_see_what_ran_and_wake_nothing(
    server: Any,
    api: httpx2.Client,
    client_of: NewClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A paused sandbox stays paused, an idle one stays idle, and no secret of the environment is in the history."""
    watcher = client_of(api, "watch")
    body = {"envs": {"DB_PASSWORD": "s3cr3t"}, "auto_resume": True, "idle_timeout_seconds": 600}
    made = api.post("/v1/sandboxes", json=body).json()["id"]
    place = f"/v1/sandboxes/{made}"
    context = api.post(f"{place}/contexts", json={}).json()["id"]
    assert api.post(f"{place}/executions", json={"code": "print(6 * 7)"}).status_code == 200
    run = {"code": "print(7 * 8)", "context_id": context}
    assert api.post(f"{place}/executions", json=run).status_code == 200
    pid = api.post(f"{place}/commands", json={"command": "echo from a command"}).json()["pid"]
    assert '"exited"' in api.get(f"{place}/commands/{pid}/output").text
    token = api.post(f"/sandboxes/{made}/connect", json={"timeout": 600}).json()["envdAccessToken"]
    reached = {"E2b-Sandbox-Id": made, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
    assert api.get("/envs", headers=reached).json()["DB_PASSWORD"] == "s3cr3t"

    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("FUMEHOOD_API_KEY", watcher.headers["X-API-Key"])

    def logs(*words: str) -> str:
        assert main(["logs", made, *words]) == 0
        return capsys.readouterr().out

    idle_ends = api.get(place).json()["ends_at"]
    assert logs() == "42\n56\nfrom a command\n"
    assert api.get(place).json()["ends_at"] == idle_ends
    assert api.post(f"{place}/pause").status_code == 200
    assert logs() == "42\n56\nfrom a command\n"
    data = logs("--json")
    assert "from a command" in data
    assert "s3cr3t" not in data
    assert "s3cr3t" not in watcher.get(f"{place}/commands/history").text
    assert api.get(place).json()["state"] == "paused"
    assert api.delete(place).status_code == 204


RUNS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/execute", {"code": "6 * 7"}),
    ("/v1/execute/batch", {"requests": [{"code": "6 * 7"}]}),
    ("/run_code", {"code": "print(6 * 7)", "language": "python"}),
    ("/run_jupyter", {"cells": ["6 * 7"]}),
    ("/librechat/exec", {"lang": "py", "code": "print(6 * 7)"}),
    ("/replit", {"code": "6 * 7"}),
    ("/v1/sandboxes", {}),
    ("/sandboxes", {"templateID": "base", "timeout": 9}),
    ("/v1/containers", {"name": "a"}),
    ("/api/kernels", {"name": "python3"}),
]


def test_watching_runs_nothing_and_execute_beside_it_runs(api: httpx2.Client, client_of: NewClient) -> None:
    """In no dialect does `watch` run right requests; with `execute` it makes stateless runs, and no sandboxes."""
    holder = client_of(api, "sandboxes", "execute")
    made = holder.post("/v1/sandboxes", json={}).json()["id"]
    runs = [*RUNS, (f"/v1/sandboxes/{made}/executions", {"code": "6 * 7"})]
    watcher, both = client_of(api, "watch"), client_of(api, "watch", "execute")

    for path, body in runs:
        assert watcher.post(path, json=body).status_code in (401, 403), path

    for path, body in runs[:2]:
        answer = both.post(path, json=body)
        assert (answer.status_code, '"42"' in answer.text) == (200, True), answer.text

    with both.stream(
        "POST", "/v1/execute", json=RUNS[0][1], headers={"Accept": "application/x-ndjson"}
    ) as lines:
        assert '"42"' in "".join(lines.iter_text())

    for path, body in runs[6:]:
        assert both.post(path, json=body).status_code in (401, 403), path

    # It sees what it watches, and nothing of its own runs is left in it.
    assert made in {one["id"] for one in both.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]}
    cells = holder.get(f"/v1/sandboxes/{made}/contexts/default/executions").json()["items"]
    assert cells == []
    # Control: each request is right, since the key that may makes it.
    for path, body in runs:
        assert holder.post(path, json=body).status_code in (200, 201), path

    assert api.delete(f"/v1/keys/{holder.headers['x-test-key']}").status_code == 204


def test_no_key_gives_itself_a_wider_view(api: httpx2.Client, client_of: NewClient) -> None:
    """A key made by the owner that gave itself `watch` would see all; its own keys see its own, and get no more."""
    maker = client_of(api, "sandboxes", "keys")
    stranger = client_of(api, "keys", "execute")

    for scopes in (["watch", "keys"], ["watch"]):
        refused = maker.patch(f"/v1/keys/{maker.headers['x-test-key']}", json={"scopes": scopes})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    # One that has no sandboxes has none to be looked at.
    assert stranger.post("/v1/keys", json={"name": "k", "scopes": ["watch"]}).status_code == 403
    mixed = api.post("/v1/keys", json={"name": "k", "scopes": ["watch", "sandboxes"]})
    assert (mixed.status_code, mixed.json()["fields"]["field"]) == (422, "scopes")
    made = client_of(maker, "sandboxes")
    changed = maker.patch(f"/v1/keys/{made.headers['x-test-key']}", json={"scopes": ["watch"]})
    assert changed.json()["scopes"] == ["watch"]
    assert made.get("/v1/sandboxes").json()["items"] == []
    assert made.post("/v1/sandboxes", json={}).status_code == 403
