"""The log of a real `fumehood serve`: what an operator finds in it, and what never is in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

_SECONDS = 60


class Log:
    """The lines of a server that writes JSON.

    Args:
        server: The server.
    """

    def __init__(self, server: RunningServer) -> None:
        self.server = server

    @property
    def text(self) -> str:
        """All that it has written."""
        return "".join(self.server.said)

    def lines(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of an event with these fields."""
        found = [json.loads(line) for line in self.server.said]
        return [
            line
            for line in found
            if line.get("event") == event and all(line.get(name) == fields[name] for name in fields)
        ]

    def one(self, event: str, **fields: object) -> dict[str, Any]:
        """The line of an event, which may still be on its way."""
        until(lambda: self.lines(event, **fields))
        (line,) = self.lines(event, **fields)
        return line


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    server = RunningServer(
        tmp_path_factory.mktemp("log") / "state",
        log_format="json",
        log_level="debug",
        pool_size=0,
        max_sandboxes=2,
        slow_request_seconds=0.5,
        max_body_bytes=100_000,
        max_network="listed",
    )
    yield Log(server)
    server.stop()


@pytest.fixture
def client(log: Log) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=log.server.url, headers=log.server.headers, timeout=_SECONDS) as client:
        yield client


def test_the_start_names_address_version_and_settings(log: Log) -> None:
    line = log.one("server.started")
    assert line["address"] == log.server.url
    assert line["settings"]["max_sandboxes"] == 2
    assert line["settings"]["token"] == "***"
    assert log.server.token not in log.text
    assert (line["level"], line["logger"]) == ("info", "fumehood.server")


def test_a_request_is_one_line_with_its_id_and_key(log: Log, client: httpx2.Client) -> None:
    name = secrets.token_hex(8)
    answer = client.get("/v1/info", headers={"X-Request-Id": name})
    assert answer.headers["x-request-id"] == name
    line = log.one("request.served", request_id=name)
    assert (line["method"], line["route"], line["status"], line["key_id"]) == (
        "GET",
        "/v1/info",
        200,
        "owner",
    )
    assert log.one("key.used", request_id=name)["key_id"] == "owner"


@pytest.mark.parametrize("name", ["a b", "x" * 129, "a\tb", 'a"}'])
def test_an_id_that_is_none_is_replaced(log: Log, client: httpx2.Client, name: str) -> None:
    given = client.get("/v1/info", headers={"X-Request-Id": name}).headers["x-request-id"]
    assert given != name
    log.one("request.served", request_id=given)


def test_a_probe_is_logged_when_debugging(log: Log, client: httpx2.Client) -> None:
    given = client.get("/healthz").headers["x-request-id"]
    assert log.one("probe.served", request_id=given)["level"] == "debug"


def test_a_refused_key_has_a_reason_and_no_token(log: Log, client: httpx2.Client) -> None:
    token = f"fh_{secrets.token_hex(8)}"
    answer = client.get("/v1/info", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401
    line = log.one("key.refused", request_id=answer.headers["x-request-id"])
    assert "not known" in line["reason"]
    made = client.post("/v1/keys", json={"name": "weak", "scopes": ["execute"]}).json()
    answer = client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.status_code == 403
    line = log.one("key.refused", request_id=answer.headers["x-request-id"])
    assert "scope" in line["reason"]
    assert line["key_id"] == made["key"]["id"]
    assert token not in log.text
    assert made["token"] not in log.text


def test_a_request_before_any_route_has_a_line(log: Log, client: httpx2.Client) -> None:
    answer = client.get("/v1/info", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert log.one("request.refused", request_id=answer.headers["x-request-id"])["status"] == 421
    answer = client.post("/v1/execute", content=b" " * 200_000)
    assert answer.status_code == 413
    assert log.one("request.refused", request_id=answer.headers["x-request-id"])["status"] == 413


def test_a_quota_that_is_used_up_has_a_line(log: Log, client: httpx2.Client) -> None:
    made = client.post("/v1/keys", json={"name": "few", "policy": {"max_sandboxes": 0}}).json()
    answer = client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {made['token']}"})
    assert answer.status_code == 429, answer.text
    line = log.one("quota.refused", request_id=answer.headers["x-request-id"])
    assert (line["key_id"], line["quota"], line["maximum"]) == (made["key"]["id"], "sandboxes", 0)


def test_a_slow_request_has_a_line(log: Log, client: httpx2.Client) -> None:
    answer = client.post("/v1/execute", json={"code": "import time; time.sleep(1)"})
    assert answer.status_code == 200
    line = log.one("request.slow", request_id=answer.headers["x-request-id"])
    assert line["duration_seconds"] > 0.9
    assert line["threshold_seconds"] == 0.5


def test_every_line_is_an_object_to_the_end(start_server: Callable[..., RunningServer]) -> None:
    """Also those of the end; there is nothing beside them."""
    server = start_server(log_format="json", pool_size=0)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.said]
    assert [line["event"] for line in lines if line["logger"] == "fumehood.server"][-2:] == [
        "server.ending",
        "server.ended",
    ]
    assert lines[-1]["exit_code"] == 0


def test_a_level_leaves_out_what_is_below_it(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(log_level="error", pool_size=0)
    assert server.stop() == 0
    assert not [line for line in server.said if " fumehood." in line]


def test_the_console_format_is_text(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(pool_size=0)
    httpx2.get(f"{server.url}/v1/info", headers=server.headers, timeout=_SECONDS)
    server.stop()
    (line,) = [line for line in server.said if "route=/v1/info" in line]
    assert "INFO    fumehood.server: request method=GET route=/v1/info status=200" in line
    assert "request_id=" in line
