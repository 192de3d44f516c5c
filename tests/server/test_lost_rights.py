"""What a dialect has under way for a key ends with the key's right to it, as on native routes (row W09)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from .ends import client_of
from .test_ports import ECHO

SLEEP = "print('begun', flush=True); import time; time.sleep(60)"
# Two seconds, and what a busy machine takes.
SOON_SECONDS = 20.0


@pytest.fixture
def owner(dialect_server: RunningServer) -> Iterator[httpx2.Client]:
    with client_of(dialect_server) as client:
        yield client


class Key:
    """A key with a sandbox of E2B's API, which is kept when the key is revoked."""

    def __init__(self, server: RunningServer, owner: httpx2.Client) -> None:
        made = owner.post("/v1/keys", json={"name": "lost rights"}).raise_for_status().json()
        self.token, self.id = made["token"], made["key"]["id"]
        self.client = client_of(server, self.token)
        body = {"templateID": "base", "timeout": 300}
        sandbox = self.client.post("/sandboxes", json=body, headers={"X-API-Key": self.token})
        sandbox.raise_for_status()
        self.sandbox_id = sandbox.json()["sandboxID"]
        self.inside = {"E2b-Sandbox-Id": self.sandbox_id, "X-Access-Token": sandbox.json()["envdAccessToken"]}
        self.place = f"/v1/sandboxes/{self.sandbox_id}"
        ran = self.client.post(f"{self.place}/executions", json={"code": ECHO})
        assert ran.json()["error"] is None

    def end(self, owner: httpx2.Client) -> None:
        owner.delete(f"/v1/keys/{self.id}", params={"sandboxes": "keep"}).raise_for_status()


def test_w09_what_a_dialect_has_under_way_ends_with_the_key(
    dialect_server: RunningServer, owner: httpx2.Client
) -> None:
    """Runs, streams of E2B, and WebSockets that a sandbox's token or a signed address has opened; not others'."""
    key, other = Key(dialect_server, owner), Key(dialect_server, owner)
    url = dialect_server.url.replace("http", "ws", 1)
    signed = key.client.post(f"{key.place}/ports/8001/sign", json={}).json()["url"]
    runs: dict[str, Callable[[httpx2.Client], Any]] = {
        "fusion": lambda api: api.post(
            "/run_code", json={"code": SLEEP, "language": "python", "run_timeout": 60}
        ),
        "librechat": lambda api: api.post("/librechat/exec", json={"code": SLEEP, "lang": "py"}),
        "e2b": lambda api: api.post(
            "/execute", json={"code": SLEEP}, headers={**key.inside, "E2b-Sandbox-Port": "49999"}
        ),
    }

    def ask(name: str) -> tuple[float, str]:
        with client_of(dialect_server, key.token) as api:
            try:
                answer = runs[name](api)
            except httpx2.TransportError as error:
                # E2B's stream is reset, as when its sandbox ends.
                return time.monotonic(), type(error).__name__

            return time.monotonic(), f"{answer.status_code} {answer.text}"

    with (
        ThreadPoolExecutor(4) as pool,
        connect(f"{url}/chat", additional_headers={**key.inside, "E2b-Sandbox-Port": "8001"}) as by_token,
        connect(signed.replace("http", "ws", 1) + "chat") as by_signature,
        connect(f"{url}/chat", additional_headers={**other.inside, "E2b-Sandbox-Port": "8001"}) as of_other,
    ):
        begun = {name: pool.submit(ask, name) for name in runs}
        until(lambda: owner.get("/v1/queue").json()["running"] >= 2)
        seen = f"{key.place}/contexts/default/executions"
        until(lambda: key.client.get(seen).json()["items"][-1]["state"] == "running")
        revoked = time.monotonic()
        key.end(owner)

        for name, future in begun.items():
            at, said = future.result(timeout=60)
            assert at - revoked < SOON_SECONDS, (name, said)
            assert "begun" not in said, (name, said)

        for socket in (by_token, by_signature):
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=SOON_SECONDS)

            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008

        of_other.send("hello")
        assert of_other.recv(timeout=60) == "hello"

    for one in (key, other):
        owner.delete(one.place)
        one.client.close()
