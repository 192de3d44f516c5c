"""What every request passes: rows W01 to W05, W08 and W10 of the scorecard, on a real server."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.waiting import until

from .walking import FromManyAddresses

ALL_SETTINGS = "all settings: fumehood serve --print-config"
# A share is opened by its secret, in the body.
OPEN = {"/healthz", "/readyz", "/v1/shares/{share_id}/open"}


@pytest.fixture
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30, transport=FromManyAddresses()) as client:
        yield client


def described_routes(client: httpx2.Client, server: Any) -> list[tuple[str, str]]:
    description = client.get("/openapi.json", headers=server.headers).json()
    return [(method.upper(), path) for path, item in description["paths"].items() for method in item]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer fh_" + "x" * 56},
        {"Authorization": "Bearer " + "x" * 4000},
        {"Authorization": b"Bearer \xff\xfe\xc3\xa9"},
        {"Authorization": "Basic b3duZXI6b3duZXI="},
        {"X-API-Key": "' OR 1=1 --"},
    ],
    ids=["none", "wrong", "empty", "shaped", "huge", "odd", "basic", "sql"],
)
def test_w01_every_route_asks_for_a_token(
    client: httpx2.Client, server: Any, headers: dict[str, Any]
) -> None:
    """Of what is described only health is open; `test_attacks.py` walks the routes that are not described as well."""
    routes = described_routes(client, server)
    assert len(routes) > 5

    for method, path in routes:
        if path in OPEN:
            continue

        answer = client.request(method, path.replace("{port}", "80"), headers=headers)
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["www-authenticate"] == "Bearer"
        # A HEAD has no body to say it in.
        assert method == "HEAD" or answer.json()["code"] == "unauthenticated"


def test_w01_the_token_opens(client: httpx2.Client, server: Any) -> None:
    """Control of the rows above: with the right token the same requests pass that check."""
    for headers in (server.headers, {"X-API-Key": server.token}):
        assert client.get("/v1/keys", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost", True),
        ("127.0.0.1:1", True),
        ("[::1]:80", True),
        ("evil.test", False),
        ("localhost.evil.test", False),
        ("192.168.1.1", False),
        ("127.0.0.1.evil.test", False),
        ("localhost:80@evil.test", False),
        ("localhost:evil.test", False),
        ("[[localhost]]", False),
        ("", False),
    ],
)
def test_w03_only_our_own_names_are_answered(client: httpx2.Client, host: str, passes: bool) -> None:
    """A page of another name that resolves to this machine (DNS rebinding) gets nothing."""
    answer = client.get("/healthz", headers={"Host": host})
    assert (answer.status_code == 200) is passes, answer.text

    if answer.status_code == 421:
        assert "--allowed-hosts" in answer.json()["hint"]


@pytest.mark.parametrize(
    "lines",
    [b"", b"Host: localhost\r\nHost: evil.test\r\n"],
    ids=["none", "two"],
)
def test_w03_exactly_one_host(server: Any, lines: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), 10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
        assert raw.recv(4096).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://localhost.evil.test"])
def test_w04_browsers_of_other_origins_do_nothing(client: httpx2.Client, server: Any, origin: str) -> None:
    headers = {**server.headers, "Origin": origin}
    answer = client.post("/v1/keys", json={"name": "made by a page"}, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    preflight = client.options(
        "/v1/keys", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in preflight.headers


def test_w05_forms_and_text_are_no_requests(client: httpx2.Client, server: Any) -> None:
    """What a page can send without asking first changes nothing, nor does a method that a header names."""
    body = json.dumps({"name": "made by a form"}).encode()

    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = client.post("/v1/keys", content=body, headers={**server.headers, "Content-Type": kind})
        assert answer.status_code == 422, kind

    overridden = {**server.headers, "X-HTTP-Method-Override": "POST"}
    assert client.get("/v1/keys", headers=overridden).status_code == 200
    names = [key["name"] for key in client.get("/v1/keys", headers=server.headers).json()["items"]]
    assert "made by a form" not in names


def test_w08_bodies_are_bounded(start_server: Callable[..., Any]) -> None:
    """By the length that is announced, and by what really comes when none is."""
    server = start_server(max_body_bytes=100_000, pool_size=0)

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        answer = client.post("/v1/keys", content=b"x" * 100_001)
        assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")

        def endless() -> Any:
            yield from (b"x" * 10_000 for _ in range(1000))

        answer = client.post("/v1/keys", content=endless())
        assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")


def test_w08_deep_json_is_no_fault(client: httpx2.Client, server: Any) -> None:
    for body in (b"[" * 200_000, b'{"name":' * 50_000, b'{"name": NaN}', b"\xff\xfe", b'"\\ud800"'):
        headers = {**server.headers, "Content-Type": "application/json"}
        answer = client.post("/v1/keys", content=body, headers=headers)
        assert answer.status_code in (400, 422), body[:20]
        assert answer.headers["content-type"] == "application/problem+json"


def test_w10_faults_tell_nothing_of_the_inside(client: httpx2.Client, server: Any) -> None:
    for path in ("/nothing", "/v1/keys/%00", "/v1/sandboxes/../../etc", "/v1/keys/" + "k" * 3000):
        answer = client.get(path, headers=server.headers)
        assert 400 <= answer.status_code < 500, path
        body = answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in body
        assert str(server.state) not in body
        assert server.token not in body


def _serve(state: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`fumehood serve` that is expected to refuse."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    return subprocess.run(
        [sys.executable, "-m", "fumehood", "serve", "--port", "0", *flags],
        env={**environ, "FUMEHOOD_STATE_FOLDER": str(state)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_w10_an_address_for_everybody_needs_a_token(tmp_path: Path) -> None:
    said = _serve(tmp_path, "--host", "0.0.0.0")
    assert said.returncode == 64
    assert "16 characters or more" in said.stderr
    assert "Traceback" not in said.stderr


def test_answers_carry_a_name_and_keep_browsers_from_guessing(client: httpx2.Client) -> None:
    answer = client.get("/healthz", headers={"X-Request-ID": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    # One that could forge a line of a log is not taken over.
    assert client.get("/healthz", headers={"X-Request-ID": "a b"}).headers["x-request-id"] != "a b"


def test_the_first_start_makes_a_token_that_only_its_user_reads(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "own"
    server = start_server(state, own_token=True, pool_size=0)
    token_file = state / "token"
    assert str(token_file) in "".join(server.said)
    assert server.token == token_file.read_text().strip()
    assert len(server.token) > 40
    assert httpx2.get(f"{server.url}/v1/keys", headers=server.headers, timeout=60).status_code == 200

    for path in (token_file, state / "secret", state / "fumehood.db"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path

    assert stat.S_IMODE(state.stat().st_mode) == 0o700

    # Of the settings only those that are not the defaults, with where each came from.
    until(lambda: any("/console/#login=" in line for line in server.said))
    said = [line.rstrip("\n") for line in server.said]
    assert f"its token is in {token_file}" in said
    begin, end = (said.index(line) for line in ("settings that are not the defaults:", ALL_SETTINGS))
    assert sorted(said[begin + 1 : end]) == [
        "    pool_size = 0 (--pool-size)",
        "    port = 0 (--port)",
        "    preload = [] (--preload)",
        f'    state_folder = "{state}" (FUMEHOOD_STATE_FOLDER)',
        "    wrong_tokens_per_minute = 0 (FUMEHOOD_WRONG_TOKENS_PER_MINUTE)",
    ]
    assert not [line for line in said if "the server listens" in line and "max_sandboxes" in line]


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a-token-of-some-length")
    token_file.chmod(0o644)
    tmp_path.chmod(0o700)
    said = _serve(tmp_path)
    assert said.returncode == 64
    assert "mode 644" in said.stderr
