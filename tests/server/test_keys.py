"""Keys: made, limited, rotated, revoked; and what each has used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.waiting import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


@pytest.fixture(scope="module")
def owner(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        yield client


@pytest.fixture
def make(owner: httpx2.Client, server: Any) -> Iterator[Callable[..., httpx2.Client]]:
    """Makes a key and returns a client that holds it."""
    clients: list[httpx2.Client] = []

    def key(**fields: Any) -> httpx2.Client:
        made = owner.post("/v1/keys", json={"name": "test", **fields})
        assert made.status_code == 201, made.text
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        client = httpx2.Client(base_url=server.url, headers=headers, timeout=60)
        client.params = {}
        clients.append(client)
        client.key_id = made.json()["key"]["id"]  # type: ignore[attr-defined]
        return client

    yield key

    for client in clients:
        client.close()


def test_a_key_does_what_its_scopes_say(make: Callable[..., httpx2.Client]) -> None:
    runner = make(scopes=["execute"])
    assert runner.post("/v1/execute", json={"code": "1"}).status_code == 200
    for method, path in (("POST", "/v1/sandboxes"), ("GET", "/v1/keys"), ("POST", "/v1/keys")):
        refused = runner.request(method, path, json={"name": "x"} if path == "/v1/keys" else {})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    launcher = make(scopes=["sandboxes"])
    assert launcher.post("/v1/sandboxes", json={}).status_code == 201
    assert launcher.post("/v1/execute", json={"code": "1"}).status_code == 403


def test_counters_of_the_server_need_their_scope(
    make: Callable[..., httpx2.Client], owner: httpx2.Client
) -> None:
    """They are of all keys, so no tenant reads them; the key of a Prometheus reads nothing else."""
    tenant, prometheus = make(scopes=["execute", "sandboxes", "keys"]), make(scopes=["metrics"])
    refused = tenant.get("/metrics")
    assert (refused.status_code, refused.json()["code"], "'metrics'" in refused.text) == (
        403,
        "forbidden",
        True,
    )
    assert "fumehood_http_requests_total" in prometheus.get("/metrics").text
    assert owner.get("/metrics").status_code == 200

    for method, path in (("POST", "/v1/execute"), ("GET", "/v1/sandboxes"), ("GET", "/v1/keys")):
        body = {"code": "1"} if method == "POST" else None
        assert prometheus.request(method, path, json=body).status_code == 403, path

    # A key gives the scope only if it has it; the owner gives it, and takes it away.
    given = {"name": "p", "scopes": ["metrics"]}
    assert tenant.post("/v1/keys", json=given).status_code == 403
    path = f"/v1/keys/{prometheus.key_id}"  # type: ignore[attr-defined]
    assert owner.patch(path, json={"scopes": ["execute"]}).status_code == 200
    assert prometheus.get("/metrics").status_code == 403


def test_w09_keys_do_not_see_one_another(make: Callable[..., httpx2.Client], owner: httpx2.Client) -> None:
    """Whatever a stranger asks of a sandbox, it is as if it had never been; the server's owner sees all."""
    mine, stranger = make(), make()
    name = mine.post("/v1/sandboxes", json={}).json()["id"]
    place = f"/v1/sandboxes/{name}"
    mine.put(f"{place}/files/content?path=a", content=b"x")
    ran = mine.post(f"{place}/executions", json={"code": "1"}).json()
    asked = [
        ("GET", "", None),
        ("POST", "/timeout", {"timeout_seconds": 5}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("GET", "/metrics", None),
        ("POST", "/executions", {"code": "1"}),
        ("POST", f"/executions/{ran['id']}/input", {"request_id": "1", "text": "x"}),
        ("GET", "/contexts", None),
        ("POST", "/contexts", {}),
        ("POST", "/contexts/default/interrupt", None),
        ("GET", "/files", None),
        ("GET", "/files/content?path=a", None),
        ("PUT", "/files/content?path=a", None),
        ("POST", "/files/sign", {"path": "a"}),
        ("DELETE", "/files?path=a", None),
        ("GET", "/commands", None),
        ("POST", "/commands", {"argv": ["true"]}),
        ("GET", "/commands/1/output", None),
        ("GET", "/ports/8000/", None),
        ("POST", "/ports/8000/sign", {}),
        ("DELETE", "", None),
    ]

    for method, path, body in asked:
        real = stranger.request(method, f"{place}{path}", json=body)
        guessed = stranger.request(method, f"/v1/sandboxes/{'0' * len(name)}{path}", json=body)
        shape = (real.status_code, real.json().get("code"))
        assert shape == (guessed.status_code, guessed.json().get("code")) == (404, "sandbox_not_found"), path
        assert name not in guessed.text

    assert stranger.get("/v1/sandboxes").json()["items"] == []
    assert mine.get(place).json()["state"] == "running"
    assert name in [item["id"] for item in owner.get("/v1/sandboxes").json()["items"]]
    assert mine.get(f"{place}/files/content?path=a").content == b"x"
    assert mine.delete(place).status_code == 204


def test_rotation_and_revocation(
    make: Callable[..., httpx2.Client], owner: httpx2.Client, server: Any
) -> None:
    client = make()
    key_id = client.key_id  # type: ignore[attr-defined]
    rotated = owner.post(f"/v1/keys/{key_id}/rotate", json={"grace_seconds": 60}).json()
    new = {"Authorization": f"Bearer {rotated['token']}"}
    assert client.get("/v1/sandboxes").status_code == 200
    assert httpx2.get(f"{server.url}/v1/sandboxes", headers=new).status_code == 200
    owner.post(f"/v1/keys/{key_id}/rotate", json={})
    assert client.get("/v1/sandboxes").status_code == 401
    assert owner.delete(f"/v1/keys/{key_id}").status_code == 204
    assert httpx2.get(f"{server.url}/v1/sandboxes", headers=new).status_code == 401
    assert owner.get(f"/v1/keys/{key_id}").json()["revoked_at"] is not None
    assert owner.get("/v1/keys/nosuchkey").status_code == 404
    assert rotated["token"] not in owner.get("/v1/keys").text


def test_a_key_changes_and_keeps_its_token(make: Callable[..., httpx2.Client], owner: httpx2.Client) -> None:
    """What is named changes, for the next request; the rest stays."""
    client = make(policy={"max_sandboxes": 1, "max_limits": {"memory_bytes": 256 << 20, "wall_seconds": 5}})
    path = f"/v1/keys/{client.key_id}"  # type: ignore[attr-defined]
    assert client.post("/v1/sandboxes", json={}).status_code == 201
    assert client.post("/v1/sandboxes", json={}).status_code == 429

    change = {
        "max_sandboxes": 2,
        "executions_per_day": 0,
        "max_limits": {"wall_seconds": None, "open_files": 128},
    }
    changed = owner.patch(path, json={"policy": change})
    assert changed.status_code == 200, changed.text
    policy = changed.json()["policy"]
    assert (policy["max_sandboxes"], policy["executions_per_day"]) == (2, 0)
    assert policy["max_limits"] == {"memory_bytes": 256 << 20, "open_files": 128}
    assert owner.get(path).json() == changed.json()
    assert changed.json()["scopes"] == ["execute", "sandboxes"]
    assert client.post("/v1/sandboxes", json={}).status_code == 201
    assert client.post("/v1/execute", json={"code": "1"}).status_code == 429

    renamed = owner.patch(
        path, json={"name": "blue", "scopes": ["execute"], "policy": {"executions_per_day": None}}
    )
    assert renamed.json()["name"] == "blue"
    assert renamed.json()["policy"] == {**policy, "executions_per_day": None}
    assert client.post("/v1/execute", json={"code": "1"}).status_code == 200
    assert client.get("/v1/sandboxes").status_code == 403
    assert owner.patch(path, json={}).json() == renamed.json()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": ""}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"policy": {"max_sandboxes": -1}}, "max_sandboxes"),
        ({"policy": {"max_limits": {"nonsense": None}}}, "nonsense"),
        ({"policy": {"max_limits": {"nonsense": 1}}}, "nonsense"),
        ({"policy": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_a_wrong_change_changes_nothing(
    make: Callable[..., httpx2.Client], owner: httpx2.Client, body: dict[str, Any], said: str
) -> None:
    path = f"/v1/keys/{make().key_id}"  # type: ignore[attr-defined]
    before = owner.get(path).json()
    refused = owner.patch(path, json=body)
    assert (refused.status_code, said in refused.text) == (422, True), refused.text
    assert owner.get(path).json() == before


def test_a_key_gives_no_other_more_than_it_has(
    make: Callable[..., httpx2.Client], owner: httpx2.Client
) -> None:
    """By a change no more than at creation; what the owner gave a key stays when another field changes."""
    own = {"max_sandboxes": 3, "max_network": "none", "max_limits": {"wall_seconds": 10}}
    maker = make(scopes=["keys", "execute"], policy=own)
    child = maker.post("/v1/keys", json={"name": "child", "scopes": ["execute"]}).json()["key"]["id"]
    path = f"/v1/keys/{child}"

    for policy in (
        {"max_sandboxes": 4},
        {"max_sandboxes": None},
        {"max_network": "internet"},
        {"max_network": None},
        {"max_limits": {"wall_seconds": 11}},
        {"max_limits": {"wall_seconds": None}},
    ):
        refused = maker.patch(path, json={"policy": policy})
        assert (refused.status_code, "this key's own" in refused.text) == (422, True), refused.text

    assert maker.patch(path, json={"scopes": ["execute", "sandboxes"]}).status_code == 403
    # Nor to itself.
    itself = f"/v1/keys/{maker.key_id}"  # type: ignore[attr-defined]
    assert maker.patch(itself, json={"policy": {"max_sandboxes": 100}}).status_code == 422
    assert maker.patch(itself, json={"scopes": ["keys", "sandboxes"]}).status_code == 403

    raised = {"scopes": ["execute", "sandboxes"], "policy": {"max_sandboxes": 9}}
    assert owner.patch(path, json=raised).status_code == 200
    kept = maker.patch(path, json={"name": "still", "policy": {"executions_per_day": 5}}).json()
    assert (kept["policy"]["max_sandboxes"], kept["scopes"]) == (9, ["execute", "sandboxes"])


def test_a_revoked_key_is_not_changed(make: Callable[..., httpx2.Client], owner: httpx2.Client) -> None:
    path = f"/v1/keys/{make().key_id}"  # type: ignore[attr-defined]
    assert owner.delete(path).status_code == 204
    assert owner.patch(path, json={"name": "again"}).status_code == 404


@pytest.mark.parametrize("kept", [False, True])
def test_revoking_a_key_ends_its_sandboxes(
    make: Callable[..., httpx2.Client], owner: httpx2.Client, kept: bool
) -> None:
    """Unless they are to be kept; those of others live on."""
    client, other = make(), make()
    mine = {client.post("/v1/sandboxes", json={}).json()["id"] for _ in range(2)}
    client.post(f"/v1/sandboxes/{min(mine)}/pause")
    theirs = other.post("/v1/sandboxes", json={}).json()["id"]
    path = f"/v1/keys/{client.key_id}"  # type: ignore[attr-defined]
    assert owner.delete(path, params={"sandboxes": "keep"} if kept else {}).status_code == 204

    left = {item["id"] for item in owner.get("/v1/sandboxes", params={"limit": 1000}).json()["items"]}
    assert (left & mine, theirs in left) == (mine if kept else set(), True)
    status = owner.get(f"/v1/sandboxes/{min(mine)}").status_code
    assert status == (200 if kept else 410)

    # A second time ends what a first one left, and is no error.
    assert owner.delete(path).status_code == 204
    assert owner.get(f"/v1/sandboxes/{min(mine)}").status_code == 410
    assert owner.delete(path, params={"sandboxes": "all"}).status_code == 422


def test_what_a_revoked_key_has_under_way_ends(
    make: Callable[..., httpx2.Client], owner: httpx2.Client, server: Any
) -> None:
    """Its runs, its batch, what it follows and its tunnels, within seconds, though its sandbox is kept; not others'."""
    client, other = make(), make()
    place = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
    sleep = {"code": "print('begun', flush=True); import time; time.sleep(40)"}
    lines = {"Accept": "application/x-ndjson"}
    asked: dict[str, tuple[str, str, Any, dict[str, str]]] = {
        "run": ("POST", "/v1/execute", sleep, {}),
        "run, as lines": ("POST", "/v1/execute", sleep, lines),
        "batch": ("POST", "/v1/execute/batch", {"requests": [sleep]}, {}),
        "execution": ("POST", f"{place}/executions", sleep, lines),
        "audit": ("GET", f"{place}/audit/events", None, {}),
    }

    def ask(holder: httpx2.Client, name: str) -> tuple[float, str]:
        method, path, body, headers = asked[name]
        text = holder.request(method, path, json=body, headers=headers).text
        return time.monotonic(), text

    listening = "import socket, threading; s = socket.create_server(('127.0.0.1', 8000)); kept = []; "
    listening += "threading.Thread(target=lambda: kept.append(s.accept()), daemon=True).start()"
    assert client.post(f"{place}/executions", json={"code": listening}).json()["error"] is None
    tunnel = f"{server.url.replace('http', 'ws', 1)}{place}/tunnels/8000"
    token = {"Authorization": client.headers["authorization"]}

    with ThreadPoolExecutor(8) as pool, connect(tunnel, additional_headers=token) as carried:
        begun = {name: pool.submit(ask, client, name) for name in asked}
        control = pool.submit(other.post, "/v1/execute", json={"code": "import time; time.sleep(8); 6 * 7"})
        # All are under way when the sandbox says that its code is.
        seen = f"{place}/contexts/default/executions"
        until(lambda: client.get(seen).json()["items"][-1]["state"] == "running")
        until(lambda: owner.get("/v1/queue").json()["running"] >= 4)
        revoked = time.monotonic()
        path = f"/v1/keys/{client.key_id}"  # type: ignore[attr-defined]
        owner.delete(path, params={"sandboxes": "keep"}).raise_for_status()

        with pytest.raises(ConnectionClosed):
            carried.recv(timeout=20)

        for name, future in begun.items():
            at, text = future.result(timeout=30)
            # Two seconds, and what a busy machine takes.
            assert at - revoked < 20, name
            assert "unauthenticated" in text or name == "batch", (name, text)

        assert control.result(timeout=60).json()["execution"]["text"] == "42"

    owner.delete(place)


@pytest.mark.parametrize(
    ("policy", "code"),
    [({"executions_per_day": 1}, "executions per day"), ({"cpu_seconds_per_day": 0}, "CPU seconds per day")],
)
def test_a_day_is_used_up(make: Callable[..., httpx2.Client], policy: dict[str, Any], code: str) -> None:
    client = make(policy=policy)

    if "executions_per_day" in policy:
        assert client.post("/v1/execute", json={"code": "1"}).status_code == 200

    refused = client.post("/v1/execute", json={"code": "1"})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota")
    assert refused.json()["fields"]["quota"] == code
    assert 0 < int(refused.headers["retry-after"]) <= 86_400


def test_no_more_sandboxes_than_allowed(make: Callable[..., httpx2.Client]) -> None:
    client = make(policy={"max_sandboxes": 1})
    name = client.post("/v1/sandboxes", json={}).json()["id"]
    refused = client.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["fields"]["quota"]) == (429, "sandboxes")
    client.delete(f"/v1/sandboxes/{name}")
    assert client.post("/v1/sandboxes", json={}).status_code == 201


def test_no_more_than_the_limits_of_a_key(make: Callable[..., httpx2.Client]) -> None:
    client = make(policy={"max_limits": {"memory_bytes": 256 << 20}})
    for path in ("/v1/sandboxes", "/v1/execute"):
        body = {} if path == "/v1/sandboxes" else {"code": "1"}
        refused = client.post(path, json={**body, "limits": {"memory_bytes": 512 << 20}})
        assert (refused.status_code, refused.json()["fields"]["limit"]) == (403, "memory_bytes")
        allowed = client.post(path, json={**body, "limits": {"memory_bytes": 256 << 20}})
        assert allowed.status_code in (200, 201)


def test_what_was_used_is_reported(make: Callable[..., httpx2.Client], owner: httpx2.Client) -> None:
    client = make()
    client.post("/v1/execute", json={"code": "sum(i * i for i in range(10**6))"})
    client.post("/v1/execute", json={"code": "1/0"})
    (used,) = client.get("/v1/usage").json()["items"]
    assert (used["executions"], used["errors"]) == (2, 1)
    assert used["cpu_seconds"] > 0
    assert used["key_id"] == client.key_id  # type: ignore[attr-defined]
    # Others see nothing of it, unless they may.
    assert make().get("/v1/usage", params={"key_id": used["key_id"]}).json()["items"] == []
    assert owner.get("/v1/usage", params={"key_id": used["key_id"]}).json()["items"] == [used]


def test_usage_survives_a_restart(start_server: Callable[..., Any]) -> None:
    server = start_server(pool_size=0, dialects="")
    made = httpx2.post(f"{server.url}/v1/keys", json={"name": "k"}, headers=server.headers, timeout=60).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert (
        httpx2.post(f"{server.url}/v1/execute", json={"code": "1"}, headers=headers, timeout=60).status_code
        == 200
    )
    assert server.stop() == 0
    again = start_server(server.state, pool_size=0, dialects="")
    (used,) = httpx2.get(f"{again.url}/v1/usage", headers=headers, timeout=60).json()["items"]
    assert used["executions"] == 1
