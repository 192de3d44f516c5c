"""Wrong tokens and requests that come too fast, at a real server, in the form of each dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from .ends import client_of

Start = Callable[..., Any]
# One route of each that needs a token: its path, the header for it, and where the text of a refusal is.
ROUTES = {
    "native": ("GET", "/v1/sandboxes", "detail"),
    "e2b": ("GET", "/sandboxes", "message"),
    "jupyter": ("GET", "/api/kernels", "message"),
    "fusion": ("POST", "/run_code", "detail"),
    "librechat": ("POST", "/librechat/v1/exec", "details"),
    "replit": ("POST", "/replit", None),
    "openai": ("POST", "/v1/containers", "error"),
    "mcp": ("POST", "/mcp", None),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that takes two wrong tokens, behind a proxy that it trusts."""
    from tests.conftest import RunningServer

    folder = tmp_path_factory.mktemp("rates") / "state"
    running = RunningServer(
        folder, pool_size=0, wrong_tokens_per_minute=2, requests_per_minute=4, trusted_proxies="127.0.0.1"
    )
    yield running
    running.stop()


@pytest.mark.parametrize("name", ROUTES)
def test_each_dialect_refuses_in_its_own_form(strict: Any, name: str) -> None:
    """The third wrong token is not looked at, and the refusal says when to come again."""
    method, path, place = ROUTES[name]
    address = f"192.0.2.{list(ROUTES).index(name)}"

    with httpx2.Client(base_url=strict.url, headers={"X-Forwarded-For": address}, timeout=60) as api:
        answers = [
            api.request(method, path, headers={"X-API-Key": "no", "Authorization": "Bearer no"}, json={})
            for _ in range(3)
        ]

    assert [answer.status_code for answer in answers[:2]] != [429, 429]
    last = answers[-1]
    assert last.status_code == 429, last.text
    assert int(last.headers["retry-after"]) in range(1, 31)
    assert last.headers["ratelimit-policy"] == '"wrong tokens from one address";q=2;w=60'
    assert last.headers["ratelimit"].startswith('"wrong tokens from one address";r=0;t=')
    told = last.text if place is None else str(last.json()[place])
    assert "too many wrong tokens from one address" in told


def test_the_forwarded_address_counts_and_a_right_token_goes_on(strict: Any) -> None:
    """An address that was wrong too often is refused; the owner behind it is not, nor is another address."""
    with httpx2.Client(base_url=strict.url, timeout=60) as api:
        headers = {"X-Forwarded-For": "203.0.113.7"}
        assert api.get("/v1/info", headers={**headers, **strict.headers}).status_code == 200

        for _ in range(3):
            refused = api.get("/v1/info", headers={**headers, "X-API-Key": "no"})

        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert api.get("/v1/info", headers={**headers, **strict.headers}).status_code == 200
        assert (
            api.get("/v1/info", headers={"X-Forwarded-For": "203.0.113.8", "X-API-Key": "no"}).status_code
            == 401
        )
        counted = api.get("/metrics", headers=strict.headers).text
        assert 'fumehood_rate_limited_total{limit="wrong tokens from one address"}' in counted


def test_a_key_makes_so_many_requests(strict: Any) -> None:
    """The owner is not counted."""
    with client_of(strict) as owner:
        token = owner.post("/v1/keys", json={"name": "fast"}).json()["token"]

        with client_of(strict, token) as api:
            answers = [api.get("/v1/info") for _ in range(5)]

        assert [answer.status_code for answer in answers] == [200] * 4 + [429]
        assert answers[-1].headers["ratelimit-policy"] == '"requests with one key";q=4;w=60'
        assert {owner.get("/v1/info").status_code for _ in range(10)} == {200}


def test_what_a_page_follows_is_a_request(strict: Any) -> None:
    """A socket is one, and so is each message that begins to follow; that it stays open costs nothing."""
    with client_of(strict) as owner:
        token = owner.post("/v1/keys", json={"name": "page"}).json()["token"]

    address = f"{strict.url.replace('http', 'ws', 1)}/v1/watch"

    with connect(address, additional_headers={"X-API-Key": token}) as page:
        said = []

        for number in range(4):
            page.send(json.dumps({"op": "follow", "id": number, "what": "server"}))
            said.append(json.loads(page.recv(timeout=30)))

    assert [one["type"] for one in said] == ["here"] * 3 + ["problem"]
    assert said[-1]["problem"]["code"] == "rate_limited"


def test_headers_of_strangers_are_not_believed(start_server: Start) -> None:
    """Without the setting the address is that of the connection, whatever a header says."""
    server = start_server(pool_size=0, dialects="", wrong_tokens_per_minute=1)

    with httpx2.Client(base_url=server.url, headers={"X-API-Key": "no"}, timeout=60) as api:
        answers = [api.get("/v1/info", headers={"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(2)]

    assert [answer.status_code for answer in answers] == [401, 429]


def test_visitors_of_a_signed_address_use_up_nothing_of_the_key(strict: Any) -> None:
    """They are bounded by themselves: the holder of the key goes on, and so does another key."""
    with client_of(strict) as owner:
        token = owner.post("/v1/keys", json={"name": "host"}).json()["token"]

    with client_of(strict, token) as api:
        name = api.post("/v1/sandboxes", json={}).json()["id"]
        signed = api.post(f"/v1/sandboxes/{name}/ports/8000/sign", json={"expires_in_seconds": 60}).json()
        visits = [httpx2.get(signed["url"]) for _ in range(5)]
        assert [visit.status_code for visit in visits] == [502] * 4 + [429]
        assert visits[-1].headers["ratelimit-policy"] == '"visits of one key";q=4;w=60'
        assert api.delete(f"/v1/sandboxes/{name}").status_code == 204


def test_tokens_in_the_form_of_e2b_are_tried_once(start_server: Start) -> None:
    """One that begins with `e2b_` may stand for another, or be the owner's as it is; a right one is no wrong one."""
    owners = "e2b_" + "61" * 20
    server = start_server(pool_size=0, dialects="e2b", wrong_tokens_per_minute=1, token=owners)

    with httpx2.Client(base_url=server.url, timeout=60) as api:
        answers = [api.get("/sandboxes", headers={"X-API-Key": owners}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        # Nothing was counted: the one wrong token that is allowed is still looked at.
        assert api.get("/sandboxes", headers={"X-API-Key": "e2b_" + "62" * 20}).status_code == 401
        assert api.get("/sandboxes", headers={"X-API-Key": "e2b_" + "63" * 20}).status_code == 429
