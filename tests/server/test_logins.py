"""Logins of the console: begun by a token or a code, used, ended; and each request for which the cookie does not count.

Each refusal has its control: the same request that a page of ours would send is answered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fumehood.server.logins import _MAX_CODES_OF_KEY
from fumehood.server.routes.guarded import GuardedRoute, SignableRoute

from .walking import filled, methods_of

COOKIE = "fumehood-console"
HEADER = {"X-Fumehood-Console": "1"}


@pytest.fixture(scope="module")
def browsers(dialect_server: RunningServer) -> Iterator[Callable[[], httpx2.Client]]:
    """Browsers with nothing in them, at a server that speaks all dialects."""
    made: list[httpx2.Client] = []

    def new() -> httpx2.Client:
        made.append(httpx2.Client(base_url=dialect_server.url, timeout=60))
        return made[-1]

    yield new

    for one in made:
        one.close()


@pytest.fixture(scope="module")
def owner(dialect_server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=dialect_server.url, headers=dialect_server.headers, timeout=60) as client:
        yield client


def logged_in(browser: httpx2.Client, owner: httpx2.Client) -> str:
    """Logs a browser in with a code, and returns its cookie."""
    code = owner.post("/v1/login/codes").json()["code"]
    answer = browser.post("/v1/login", json={"code": code}, headers=HEADER)
    assert answer.status_code == 204, answer.text
    return str(browser.cookies[COOKIE])


@pytest.fixture(scope="module")
def cookie(browsers: Callable[[], httpx2.Client], owner: httpx2.Client) -> str:
    """The cookie of a login as the owner."""
    return logged_in(browsers(), owner)


def test_a_token_or_a_code_begins_a_login(browsers: Any, owner: httpx2.Client) -> None:
    """A code works once; the cookie cannot be read by scripts, is for this host alone and never sent by other sites."""
    made = owner.post("/v1/login/codes").json()
    assert made["url"].endswith(f"/console/#login={made['code']}")
    first = browsers().post("/v1/login", json={"code": made["code"]}, headers=HEADER)
    again = browsers().post("/v1/login", json={"code": made["code"]}, headers=HEADER)
    assert (first.status_code, again.status_code) == (204, 401)
    given = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in given.split(";")}
    assert "Domain" not in given
    assert "no-store" in first.headers["cache-control"]

    key = owner.post("/v1/keys", json={"name": "ada", "policy": {"max_sandboxes": 3}}).json()
    browser = browsers()
    assert browser.post("/v1/login", json={"token": key["token"]}, headers=HEADER).status_code == 204
    me = browser.get("/v1/me", headers=HEADER).json()
    assert (me["key_id"], me["name"], me["is_owner"]) == (key["key"]["id"], "ada", False)
    assert me["use"]["sandboxes"] == {"used": 0, "maximum": 3}
    assert me["login"]["is_current"]
    assert owner.get(f"/v1/keys/{me['key_id']}/use").json() == me["use"]
    mine = owner.get("/v1/me").json()
    assert (mine["is_owner"], mine["login"]) == (True, None)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"token": "x", "code": "y"}', b'{"token": 1}'])
def test_a_login_without_sense_is_refused_and_repeats_nothing(body: bytes, server: Any) -> None:
    """Another server's share of attempts, so that the others here have theirs."""
    answer = httpx2.post(f"{server.url}/v1/login", content=body, headers=HEADER)
    assert answer.status_code in (422, 429), answer.text


def test_the_cookie_counts_with_the_header_only(browsers: Any, cookie: str) -> None:
    """A guest's page sends the cookie with images, forms and simple requests; it cannot send our header."""
    browser = browsers()
    ours = {"Cookie": f"{COOKIE}={cookie}"}
    own = str(browser.base_url).rstrip("/")
    accepted: list[dict[str, str]] = [
        {},
        {"Origin": own},
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
    ]
    refused: list[dict[str, str]] = [
        {"X-Fumehood-Console": ""},
        {"X-Fumehood-Console": "0"},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": own.replace("http:", "https:")},
        {"Origin": own.replace("127.0.0.1", "8000-abc.boxes.test")},
        {"Origin": own + "0"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ]

    for more in accepted:
        assert browser.get("/v1/me", headers=ours | HEADER | more).status_code == 200, more

    for more in refused:
        answer = browser.get("/v1/me", headers=ours | HEADER | more)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), more
        changed = browser.post("/v1/login/codes", headers=ours | HEADER | more)
        assert changed.status_code in (401, 403), more

    assert browser.get("/v1/me", headers=ours).status_code == 401
    assert browser.post("/v1/login", json={"code": "x"}).status_code == 401


def test_a_cookie_that_came_twice_or_was_planted_is_refused(browsers: Any, cookie: str) -> None:
    """A guest can plant one for the whole domain, which then arrives beside ours, before it or alone."""
    browser = browsers()
    ours = f"{COOKIE}={cookie}"
    planted = f"{COOKIE}={'A' * 43}"

    def status(*cookies: str) -> int:
        headers = [*HEADER.items(), *(("Cookie", one) for one in cookies)]
        return int(browser.get("/v1/me", headers=headers).status_code)

    assert status(f"other=1; {ours}; _xsrf=2") == 200
    for given in ((f"{planted}; {ours}",), (f"{ours}; {planted}",), (ours, planted), (f"{ours}; {ours}",)):
        assert status(*given) == 401, given

    for alone in (
        planted,
        f"{COOKIE}=",
        f"{COOKIE}={cookie}x",
        f'{COOKIE}="{cookie}"',
        f"__Host-fumehood={cookie}",
    ):
        assert status(alone) == 401, alone


def test_a_request_with_a_token_never_looks_at_the_cookie(browsers: Any, cookie: str, owner: Any) -> None:
    """A wrong token is not mended by a right cookie, and a right one needs none."""
    ours = {"Cookie": f"{COOKIE}={cookie}", **HEADER}
    for token in ({"Authorization": "Bearer nothing"}, {"X-API-Key": ""}, {"X-API-Key": "x"}):
        assert browsers().get("/v1/me", headers=ours | token).status_code == 401
    assert owner.get("/v1/me", headers={"Cookie": f"{COOKIE}=x; {COOKIE}=y"}).status_code == 200


def _status(client: httpx2.Client, path: str, headers: dict[str, str]) -> int:
    """Of an answer that may have no end."""
    with client.stream("GET", path, headers=headers) as answer:
        return answer.status_code


def test_the_cookie_opens_no_dialect_no_port_and_no_tunnel(
    browsers: Any, cookie: str, owner: httpx2.Client, routes: list[BaseRoute], dialect_server: RunningServer
) -> None:
    """Of all routes, those that are not this server's own answer a cookie as they answer a stranger."""
    browser = browsers()
    ours = {"Cookie": f"{COOKIE}={cookie}", **HEADER}
    opened = closed = 0

    for route in routes:
        path = getattr(route, "path", "")

        # A stream without an end is no answer to compare.
        if "GET" not in methods_of(route) or path == "/v1/events":
            continue

        statuses = [
            _status(client, filled(path), headers)
            for client, headers in ((browser, {}), (browser, ours), (owner, {}))
        ]

        if isinstance(route, (GuardedRoute, SignableRoute)):
            assert statuses[0] in (401, 404), (path, statuses)
            assert statuses[1] == statuses[2], (path, statuses)
            opened += 1
        else:
            assert statuses[0] == statuses[1], (path, statuses)
            closed += statuses[1] != statuses[2]

    # What the check would have noticed: routes that a token opens.
    assert opened > 20
    assert closed > 8

    sandbox = owner.post("/v1/sandboxes", json={}).json()["id"]
    try:
        port = f"/v1/sandboxes/{sandbox}/ports/8000/"
        assert browser.get(port, headers=ours).status_code == 401
        assert owner.get(port).status_code in (502, 503)
        assert browser.get(f"/v1/sandboxes/{sandbox}", headers=ours).status_code == 200
        _check_websockets(dialect_server, sandbox, cookie)
    finally:
        owner.delete(f"/v1/sandboxes/{sandbox}")


def _check_websockets(server: RunningServer, sandbox: str, cookie: str) -> None:
    base = server.url.replace("http", "ws", 1)
    ours = {"Cookie": f"{COOKIE}={cookie}"}
    terminal = f"{base}/v1/sandboxes/{sandbox}/pty"

    def status(address: str, **more: Any) -> int:
        try:
            with connect(address, **more):
                return 101
        except InvalidStatus as error:
            return int(error.response.status_code)

    assert status(terminal, additional_headers=ours, origin=server.url) == 101
    # Without an Origin, or with another one; the ingress knows no origin of others either.
    assert status(terminal, additional_headers=ours | HEADER) == 401
    for origin in ("null", "https://evil.example", server.url.replace("http", "https"), f"{server.url}0"):
        assert status(terminal, additional_headers=ours, origin=origin) in (401, 403), origin  # type: ignore[arg-type]
    twice = {"Cookie": f"{COOKIE}={cookie}; {COOKIE}={cookie}"}
    assert status(terminal, additional_headers=twice, origin=server.url) == 401

    for path in (f"/v1/sandboxes/{sandbox}/ports/8000/", f"/v1/sandboxes/{sandbox}/tunnels/8000"):
        assert status(base + path, additional_headers=ours, origin=server.url) in (401, 403), path
        assert status(base + path, additional_headers=server.headers) not in (401, 403), path


def test_logins_end_with_their_token_and_on_request(browsers: Any, owner: httpx2.Client) -> None:
    """A login ends when its key is rotated or revoked, by itself, and with all of its key."""

    def new_key() -> tuple[str, str]:
        made = owner.post("/v1/keys", json={"name": "bob"}).json()
        return made["key"]["id"], made["token"]

    def status(browser: httpx2.Client) -> int:
        return int(browser.get("/v1/me", headers=HEADER).status_code)

    def login_of(key: str, token: str) -> httpx2.Client:
        # By a code: attempts with tokens are few in a minute for each address, whoever they are for.
        with httpx2.Client(base_url=owner.base_url, headers={"X-API-Key": token}) as holder:
            browser = browsers()
            logged_in(browser, holder)
            assert status(browser) == 200, key
            return browser

    key, token = new_key()
    rotated, revoked = login_of(key, token), login_of(*(other := new_key()))
    owner.post(f"/v1/keys/{key}/rotate", json={"grace_seconds": 600})
    owner.delete(f"/v1/keys/{other[0]}")
    assert (status(rotated), status(revoked)) == (401, 401)
    # The old token itself still counts for a while, and begins no login.
    assert owner.get("/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 200

    key, token = new_key()
    one, two = login_of(key, token), login_of(key, token)
    listed = one.get("/v1/logins", headers=HEADER).json()["items"]
    assert [item["is_current"] for item in listed].count(True) == 1
    assert {item["key_id"] for item in listed} == {key}
    assert one.delete("/v1/login", headers=HEADER).status_code == 204
    assert COOKIE not in one.cookies
    assert (status(one), status(two)) == (401, 200)
    assert two.delete("/v1/logins", headers=HEADER).status_code == 204
    assert status(two) == 401


def test_codes_end_with_what_has_made_them(browsers: Any, owner: httpx2.Client) -> None:
    """A login hands its end on by a code, and takes its codes along; each key has codes of its own, and so many."""
    key = owner.post("/v1/keys", json={"name": "eve"}).json()
    mine = owner.post("/v1/login/codes").json()["code"]

    def status(code: str) -> int:
        return int(browsers().post("/v1/login", json={"code": code}, headers=HEADER).status_code)

    with httpx2.Client(base_url=owner.base_url, headers={"X-API-Key": key["token"]}) as holder:

        def new_code(client: httpx2.Client = holder) -> str:
            return str(client.post("/v1/login/codes", headers=HEADER).json()["code"])

        first = browsers()
        logged_in(first, holder)
        second = browsers()
        second.post("/v1/login", json={"code": new_code(first)}, headers=HEADER).raise_for_status()
        logins = [one.get("/v1/me", headers=HEADER).json()["login"] for one in (first, second)]
        assert logins[0]["id"] != logins[1]["id"]
        assert logins[0]["ends_at"] == logins[1]["ends_at"]

        by_first, by_second, by_token = new_code(first), new_code(second), new_code()
        first.delete("/v1/login", headers=HEADER).raise_for_status()
        assert (status(by_first), status(by_second), status(by_token)) == (401, 204, 204)
        left = new_code(second), new_code()
        second.delete("/v1/logins", headers=HEADER).raise_for_status()
        assert [status(code) for code in left] == [401, 401]
        many = [new_code() for _ in range(_MAX_CODES_OF_KEY + 1)]
        assert (status(many[0]), status(many[1])) == (401, 204)

    assert status(mine) == 204


def test_logins_survive_the_server_and_are_few_in_a_minute(
    start_server: Callable[..., RunningServer],
) -> None:
    """The database keeps them; an address is wrong ten times in a minute; a new owner's token ends them."""
    server = start_server(pool_size=0, dialects="")

    with httpx2.Client(base_url=server.url, timeout=60) as browser:
        body = {"token": server.token}
        right = [browser.post("/v1/login", json=body, headers=HEADER) for _ in range(11)]
        assert {one.status_code for one in right} == {204}
        tries = [browser.post("/v1/login", json={"token": "x"}, headers=HEADER) for _ in range(11)]
        assert [one.status_code for one in tries] == [401] * 10 + [429]
        assert int(tries[-1].headers["retry-after"]) <= 60
        cookie = browser.cookies[COOKIE]

    server.stop()
    again = start_server(server.state, pool_size=0, dialects="")
    headers = {**HEADER, "Cookie": f"{COOKIE}={cookie}"}
    assert httpx2.get(f"{again.url}/v1/me", headers=headers).status_code == 200
    envs = {"PATH": os.environ["PATH"], "FUMEHOOD_URL": again.url, "FUMEHOOD_API_KEY": again.token}
    said = subprocess.run(
        [sys.executable, "-m", "fumehood", "console"], env=envs, capture_output=True, text=True
    )
    assert said.stdout.startswith(f"{again.url}/console/#login="), said.stderr
    code = said.stdout.strip().partition("#login=")[2]
    assert httpx2.post(f"{again.url}/v1/login", json={"code": code}, headers=HEADER).status_code == 204
    again.stop()
    behind = start_server(
        server.state,
        pool_size=0,
        dialects="jupyter",
        public_url="https://fumehood.example",
        allowed_hosts="fumehood.example",
        token="n" * 20,
    )
    # There is a new owner's token.
    public = {**HEADER, "Host": "fumehood.example", "Origin": "https://fumehood.example"}
    stale = httpx2.get(f"{behind.url}/v1/me", headers={**public, "Cookie": f"__Host-fumehood={cookie}"})
    assert stale.status_code == 401
    # Behind a proxy that ends TLS the cookies are for https only.
    body = {"token": "n" * 20}
    secure = httpx2.post(f"{behind.url}/v1/login", json=body, headers=public)
    assert secure.status_code == 204
    assert secure.headers["set-cookie"].startswith("__Host-fumehood=")
    assert "Secure" in secure.headers["set-cookie"]
    fresh = secure.headers["set-cookie"].partition(";")[0]
    assert httpx2.get(f"{behind.url}/v1/me", headers={**public, "Cookie": fresh}).status_code == 200
    assert "Secure" in httpx2.get(f"{behind.url}/login", headers=public).headers["set-cookie"]
