"""Nobody reaches a sandbox that is not theirs: every route with no token, a wrong one, and another tenant's."""

from __future__ import annotations

import json
import struct

import pytest
from e2b import AuthenticationException, NotFoundException
from e2b_code_interpreter import Sandbox
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

UNARY = (
    *(f"process.Process/{name}" for name in ("List", "SendInput", "CloseStdin", "SendSignal", "Update")),
    *(f"filesystem.Filesystem/{name}" for name in ("Stat", "MakeDir", "Move", "ListDir", "Remove")),
    *(f"filesystem.Filesystem/{name}" for name in ("CreateWatcher", "GetWatcherEvents", "RemoveWatcher")),
)
STREAMS = (
    "process.Process/Start",
    "process.Process/Connect",
    "process.Process/StreamInput",
    "filesystem.Filesystem/WatchDir",
)
CONTROL = (
    ("POST", "/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/sandboxes"),
    ("GET", "/v2/sandboxes"),
    *(
        (method, f"{prefix}/sandboxes/ID{path}")
        for prefix in ("", "/v2")
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/connect"),
            ("POST", "/resume"),
            ("POST", "/timeout"),
            ("POST", "/refreshes"),
            ("POST", "/pause"),
            ("GET", "/metrics"),
            ("PUT", "/network"),
            ("POST", "/fork"),
            ("POST", "/snapshots"),
            ("GET", "/logs"),
        )
    ),
    ("GET", "/snapshots"),
    ("DELETE", "/templates/a"),
    ("GET", "/templates/aliases/base"),
    ("POST", "/v3/templates"),
    ("POST", "/v2/templates/a/builds/b"),
    ("GET", "/volumes"),
    ("GET", "/secrets"),
    ("GET", "/events/sandboxes"),
)
FRAME = struct.pack(">BI", 0, 2) + b"{}"


def sandbox_requests():
    """Every request that goes to a sandbox."""
    yield from ((49983, "GET", path, {}, b"") for path in ("/health", "/metrics", "/envs", "/files?path=x"))
    yield 49983, "POST", "/files?path=x", {"Content-Type": "application/octet-stream"}, b"x"
    yield from ((49983, "POST", f"/{name}", {"Content-Type": "application/json"}, b"{}") for name in UNARY)
    yield from (
        (49983, "POST", f"/{name}", {"Content-Type": "application/connect+json"}, FRAME) for name in STREAMS
    )
    yield 49999, "GET", "/health", {}, b""
    yield 49999, "POST", "/execute", {}, json.dumps({"code": "1"}).encode()
    yield 49999, "GET", "/contexts", {}, b""
    yield 49999, "POST", "/contexts", {}, b"{}"
    yield 49999, "POST", "/contexts/default/restart", {}, b""
    yield 49999, "DELETE", "/contexts/default", {}, b""
    yield 3000, "GET", "/", {}, b""


@pytest.fixture(scope="module")
def tenants(new_key, addresses):
    """Two tenants, and a sandbox of each."""
    keys = [new_key(), new_key()]
    boxes = [Sandbox.create(timeout=300, api_key=key) for key in keys]
    yield list(zip(keys, boxes, strict=True))

    for box in boxes:
        box.kill()


@pytest.mark.parametrize(("method", "path"), CONTROL)
def test_the_control_plane_asks_for_a_key(http, tenants, method, path):
    """On every route, before it looks at anything else."""
    path = path.replace("ID", tenants[0][1].sandbox_id)

    for headers in (
        {},
        {"X-API-Key": "e2b_" + "0" * 40},
        {"X-Access-Token": tenants[0][1]._envd_access_token},
    ):
        answer = http.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["code"] == 401


def test_a_sandbox_of_another_tenant_is_not_there(http, tenants):
    """Not for a route with an id, not in a list, and it lives on."""
    (key, own), (_, other) = tenants

    for method, path in CONTROL:
        if "ID" in path and not path.endswith("logs"):
            body = b'{"timeout": 1}' if method == "POST" else b""
            answer = http.request(
                method, path.replace("ID", other.sandbox_id), headers={"X-API-Key": key}, content=body
            )
            assert answer.status_code == 404, (method, path)

    assert [info.sandbox_id for info in Sandbox.list(api_key=key).next_items()] == [own.sandbox_id]
    assert Sandbox.kill(other.sandbox_id, api_key=key) is False
    assert other.is_running()

    with pytest.raises(NotFoundException):
        Sandbox.connect(other.sandbox_id, api_key=key)


@pytest.mark.parametrize(("port", "method", "path", "headers", "body"), list(sandbox_requests()))
def test_a_sandbox_asks_for_its_own_token(http, tenants, server, port, method, path, headers, body):
    """Another sandbox's, an API key or nothing at all is not enough."""
    (key, own), (_, other) = tenants
    named = {**headers, "E2b-Sandbox-Id": other.sandbox_id, "E2b-Sandbox-Port": str(port)}

    for tokens in (
        {},
        {"X-Access-Token": ""},
        {"X-Access-Token": own._envd_access_token, "E2B-Traffic-Access-Token": own.traffic_access_token},
        {"X-API-Key": key, "Authorization": f"Bearer {server.token}"},
        {"X-Access-Token": other.traffic_access_token},
    ):
        answer = http.request(method, path, headers={**named, **tokens}, content=body)

        if answer.headers["content-type"] == "application/connect+json":
            error = json.loads(answer.content[5:])["error"]
            assert error["code"] == "unauthenticated"
        else:
            assert answer.status_code in (401, 403), (tokens, answer.text)


@pytest.mark.parametrize("sandbox_id", ["x", "x" * 5000, "a%20b", "%00", "%2e%2e", "%C3%BC", "a" * 32])
def test_an_id_that_is_none_is_not_there(http, addresses, sandbox_id):
    """However odd it is."""
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}

    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/pause"),
        ("POST", "/connect"),
        ("GET", "/metrics"),
    ):
        answer = http.request(method, f"/sandboxes/{sandbox_id}{path}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, 404)


@pytest.mark.parametrize("port", ["49983", "49999", "3000", "0"])
def test_a_websocket_asks_for_a_token_too(server, tenants, port):
    """Before it is accepted."""
    (_, own), (_, other) = tenants
    address = server.url.replace("http", "ws")

    for token in ("", own._envd_access_token):
        headers = {"E2b-Sandbox-Id": other.sandbox_id, "E2b-Sandbox-Port": port, "X-Access-Token": token}

        with pytest.raises(InvalidStatus) as caught:
            connect(address, additional_headers=headers)

        assert caught.value.response.status_code == 403


def test_a_key_may_be_written_as_older_sdks_want_it(server, new_key):
    """`e2b_` and hex: the 2.45 generation refuses anything else before it sends it."""
    for token in (new_key(), server.token):
        with Sandbox.create(timeout=60, api_key=f"e2b_{token.encode().hex()}") as sandbox:
            assert sandbox.sandbox_id in [
                info.sandbox_id for info in Sandbox.list(api_key=token).next_items()
            ]

    for token in ("e2b_", "e2b_zz", "e2b_ff", f"e2b_{b'wrong'.hex()}"):
        with pytest.raises(AuthenticationException):
            Sandbox.list(api_key=token).next_items()


def test_a_revoked_key_takes_its_sandboxes_tokens_along(server, http, new_key, headers_of, eventually):
    """Within seconds."""
    key = new_key()
    sandbox = Sandbox.create(timeout=60, api_key=key)
    path = f"/v1/keys/{key.split('_')[1]}"
    kept = http.delete(path, params={"sandboxes": "keep"}, headers=server.headers)
    assert kept.status_code == 204

    with pytest.raises(AuthenticationException):
        sandbox.get_info()

    eventually(lambda: http.get("/health", headers=headers_of(sandbox)).status_code == 401)
    assert http.delete(f"/v1/sandboxes/{sandbox.sandbox_id}", headers=server.headers).status_code == 204


def test_quotas_hold_on_this_way_too(new_key):
    """Executions by a sandbox's token are counted for the key that it belongs to."""
    with Sandbox.create(timeout=60, api_key=new_key(executions_per_day=2)) as sandbox:
        assert sandbox.run_code("1").text == "1"
        assert sandbox.run_code("2").text == "2"

        with pytest.raises(Exception, match="429"):
            sandbox.run_code("3")
