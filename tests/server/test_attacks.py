"""The server attacked by a network client without a token, and by one tenant against another.

Names begin with the row of the scorecard. Every row that says "refused" has a control beside it: the same request with
the right token passes, or the test would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute, Match

from .walking import METHODS, OPEN, REFUSED, SITE, dialect_of, filled, status_of_upgrade

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


# -- W01: every route of every dialect


def test_w01_no_route_answers_without_a_token(client: httpx2.Client, routes: list[BaseRoute]) -> None:
    """Walks the app itself, not its description: dialects, WebSockets and proxies are in no OpenAPI."""
    asked = 0

    for route in routes:
        path = str(getattr(route, "path", ""))

        if not path.startswith("/") or path in {*OPEN, *SITE, "/openapi.json"}:
            continue

        asked += 1

        if (methods := getattr(route, "methods", None)) is None:
            assert status_of_upgrade(client, filled(path), {}) in REFUSED, path
            continue

        for method in methods:
            answer = client.request(method, filled(path), json={} if method == "POST" else None)
            assert answer.status_code in REFUSED, (method, path, answer.status_code, answer.text)

    assert asked > 80


def test_w01_what_is_open_says_the_same_to_everybody(client: httpx2.Client, server: Any) -> None:
    """The few open routes: constants, the same with and without a token."""
    for path in OPEN:
        stranger, owner = client.get(path), client.get(path, headers=server.headers)
        assert (stranger.status_code, stranger.text) == (owner.status_code, owner.text), path
        assert len(stranger.content) < 1000, path


def test_w01_the_description_holds_nothing_of_the_server(client: httpx2.Client, server: Any) -> None:
    """It needs no token, and is what every server of this version gives: no setting, path, address or token."""
    stranger = client.get("/openapi.json")
    assert (stranger.status_code, stranger.content) == (
        200,
        client.get("/openapi.json", headers=server.headers).content,
    )
    assert "/v1/keys" in stranger.json()["paths"]
    assert "/openapi.json" not in stranger.json()["paths"]
    assert stranger.json()["info"]["version"] == metadata.version("fumehood")
    assert stranger.headers["content-type"] == "application/json"

    for secret in (server.token, str(server.state), server.url):
        assert secret not in stranger.text


def test_w01_the_front_page_leads_on_and_runs_nothing(client: httpx2.Client) -> None:
    """Each address of this server on the page answers; a browser may load nothing for it."""
    page = client.get("/", headers={"Accept": "*/*"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    assert not re.search(r"<(script|style|img|link|iframe)|src=|on[a-z]+=", page.text)
    leads = re.findall(r'href="([^":]+)"', page.text)
    assert leads == ["docs/", "openapi/", "openapi.json", "healthz", "readyz"]

    # The documentation may not be installed.
    for path in leads[1:]:
        assert client.get(f"/{path}").status_code == 200, path


@pytest.mark.parametrize("port", ["49983", "49999", "8000", "0", "x", "99999999999999999999"])
def test_w01_what_names_a_sandbox_by_headers_asks_too(
    client: httpx2.Client, api: httpx2.Client, place: str, port: str
) -> None:
    """The routes of E2B that match no path: each port, each service, plain, Connect and WebSocket."""
    named = {"E2b-Sandbox-Id": place.rpartition("/")[2], "E2b-Sandbox-Port": port}
    odd: dict[str, Any] = {"X-Access-Token": "wrong", "E2b-Traffic-Access-Token": b"\xc3\xa9\xff"}
    is_port = port.isdigit() and 0 < int(port) < 65536

    for path in ("/health", "/files", "/files?path=x&signature=v1_x", "/execute", "/envs", "/metrics", "/"):
        for headers in (named, {**named, **odd}):
            for method in ("GET", "POST"):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code in (REFUSED if is_port else {400, 401, 403}), (method, path)

    call = {**named, "Content-Type": "application/json"}
    answer = client.post("/process.Process/List", headers=call, content=b"{}")
    assert answer.status_code in (REFUSED if is_port else {400}) or port not in ("49983", "49999")
    assert status_of_upgrade(client, "/", named) not in (101, 200)
    # Control: the sandbox is there, and its owner reaches it.
    assert api.get(place).status_code == 200


def test_w01_a_signature_of_nobody_finds_no_sandbox(client: httpx2.Client, place: str) -> None:
    for method in ("GET", "POST"):
        answer = client.request(method, "/files", params={"path": "/etc/passwd", "signature": "v1_x"})
        assert answer.status_code == 401
        assert place.rpartition("/")[2] not in answer.text


# -- routes of one dialect never answer for those of another


def test_no_two_dialects_answer_the_same_path(routes: list[BaseRoute]) -> None:
    """A request meant for one would be answered by another, with other rights."""
    owners: dict[tuple[str, str], set[str]] = {}

    for path in {filled(str(getattr(route, "path", ""))) for route in routes}:
        for method in METHODS:
            scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}

            for route in routes:
                if route.matches(dict(scope))[0] is Match.FULL:
                    owners.setdefault((method, path), set()).add(dialect_of(route))

    assert len(owners) > 100
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}


# -- W09: one key against another, and a key against its own scopes


@pytest.fixture
def keyed(server: Any, api: httpx2.Client) -> Iterator[Callable[..., httpx2.Client]]:
    """Makes clients that bring a key wherever a client of any dialect brings one."""
    made: list[httpx2.Client] = []

    def make(*scopes: str) -> httpx2.Client:
        token = api.post("/v1/keys", json={"name": "-".join(scopes), "scopes": scopes}).json()["token"]
        headers = {"Authorization": f"Bearer {token}", "X-API-Key": token}
        made.append(httpx2.Client(base_url=server.url, headers=headers, timeout=30))
        return made[-1]

    yield make

    for client in made:
        client.close()


def test_w09_no_route_of_any_dialect_reaches_the_sandbox_of_another(
    keyed: Callable[..., httpx2.Client], routes: list[BaseRoute]
) -> None:
    """Answered like an id that never was, in every dialect, by every way; its owner's control passes."""
    owner, other = keyed("sandboxes", "execute"), keyed("sandboxes", "execute")
    sandbox_id = owner.post("/v1/sandboxes", json={}).json()["id"]
    kernel_id = owner.post("/api/kernels", json={}).json()["id"]
    e2b = owner.post("/sandboxes", json={"templateID": "base"}).json()["sandboxID"]
    asked = 0

    for route in routes:
        path = str(getattr(route, "path", ""))
        of = kernel_id if "{kernel_id}" in path else sandbox_id if path.startswith("/v1/") else e2b

        if "{sandbox_id}" not in path and "{kernel_id}" not in path:
            continue

        asked += 1
        path = filled(re.sub(r"\{(sandbox|kernel)_id\}", of, path))

        if (methods := getattr(route, "methods", None)) is None:
            assert status_of_upgrade(other, path, {}) in (403, 404), path
            continue

        for method in methods:
            answer = other.request(method, path, json={} if method in ("POST", "PUT") else None)
            # 501: what no sandbox has, whoever asks.
            assert answer.status_code in (400, 403, 404, 415, 422, 501), (method, path, answer.text)

    assert asked > 50

    # Nobody has been harmed.
    for path in (f"/v1/sandboxes/{sandbox_id}", f"/api/kernels/{kernel_id}", f"/sandboxes/{e2b}"):
        assert owner.get(path).status_code == 200, path
        stranger, nobody = other.get(path), other.get(re.sub("[a-z0-9]{5}$", "00000", path))
        assert stranger.status_code == nobody.status_code == 404
        assert other.get(path.rpartition("/")[0]).json() in ([], {"items": [], "next_cursor": None})

    for path in (f"/v1/sandboxes/{sandbox_id}", f"/api/kernels/{kernel_id}", f"/sandboxes/{e2b}"):
        assert owner.delete(path).status_code == 204


# What runs code and leaves nothing, by a body that runs.
RUNS = {
    "/v1/execute": {"code": "1"},
    "/v1/execute/batch": {"requests": [{"code": "1"}]},
    "/run_code": {"code": "print(1)", "language": "python"},
    "/run_jupyter": {"cells": ["1"]},
    "/librechat/exec": {"code": "print(1)", "lang": "py"},
    "/replit": {"code": "print(1)"},
}


def test_w09_a_scope_is_one_in_every_dialect(
    keyed: Callable[..., httpx2.Client], routes: list[BaseRoute]
) -> None:
    """A key for stateless runs holds no sandbox by any way, and one for sandboxes gets no stateless run."""
    runner, holder = keyed("execute"), keyed("sandboxes")

    for path, body in RUNS.items():
        assert runner.post(path, json=body).status_code == 200, path
        assert holder.post(path, json=body).status_code == 403, path

    free = {*OPEN, *SITE, *RUNS, "/v1/info", "/v1/usage", "/openapi.json"}
    # Any key may log a browser in, as itself, and end its logins.
    free |= {"/v1/login", "/v1/login/codes", "/v1/logins", "/v1/logins/{login_id}", "/v1/me"}

    for route in routes:
        path = str(getattr(route, "path", ""))

        if not path.startswith("/") or path in free or path.startswith(("/librechat", "/replit")):
            continue

        # What takes the token of a share alone (`test_shares.py`).
        if path.startswith("/v1/shares/{share_id}"):
            continue

        if (methods := getattr(route, "methods", None)) is None:
            assert status_of_upgrade(runner, filled(path), {}) == 403, path
            continue

        for method in methods:
            body = {"templateID": "base"} if path.endswith("/sandboxes") and "v1" not in path else {}
            answer = runner.request(method, filled(path), json=body if method == "POST" else None)
            # Either kind of key may ask which templates there are; both start from them.
            expected = (200,) if (method, path) == ("GET", "/v1/templates") else (403, 422)
            assert answer.status_code in expected, (method, path, answer.text)

    assert holder.get("/v1/keys").status_code == 403
    assert holder.get("/v1/sandboxes").json()["items"] == []
