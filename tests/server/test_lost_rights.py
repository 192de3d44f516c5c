"""What a dialect has under way for a key ends with the key's right to it, as on native routes (row W09)."""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

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
SOON_SECONDS = 10.0
# What each says of a run whose caller has lost the right.
ENDED = {"fusion": "401 ", "librechat": "401 ", "e2b": ("ReadError", "RemoteProtocolError")}
# Takes connections of a port, and answers none.
SILENT = "import socket; silent = socket.create_server(('127.0.0.1', 8002))"


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
        ran = self.client.post(f"{self.place}/executions", json={"code": f"{ECHO}\n{SILENT}"})
        assert ran.json()["error"] is None
        self.pid = self.client.post(f"{self.place}/commands", json={"argv": ["cat"], "stdin": True}).json()[
            "pid"
        ]

    def end(self, owner: httpx2.Client) -> None:
        """Revoke the key."""
        owner.delete(f"/v1/keys/{self.id}", params={"sandboxes": "keep"}).raise_for_status()


@pytest.fixture
def two_keys(dialect_server: RunningServer, owner: httpx2.Client) -> Iterator[tuple[Key, Key]]:
    """The one that is revoked, and another one; their sandboxes end, and their clients, whatever a test finds."""
    with ExitStack() as held:
        made = []

        for _ in range(2):
            made.append(key := Key(dialect_server, owner))
            held.callback(key.client.close)
            held.callback(owner.delete, key.place)

        yield made[0], made[1]


class Sending:
    """A request whose body does not end, from a client that only listens.

    Args:
        server: The server.
        method: Of the request.
        path: Its path.
        headers: Its headers.
        piece: What is sent of the body.
    """

    def __init__(
        self, server: RunningServer, method: str, path: str, headers: dict[str, str], piece: bytes
    ) -> None:
        address = urlsplit(server.url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port), timeout=60)
        lines = [f"{name}: {value}" for name, value in {"Host": address.netloc, **headers}.items()]
        head = [f"{method} {path} HTTP/1.1", *lines, "Transfer-Encoding: chunked", "", ""]
        self._socket.sendall("\r\n".join(head).encode())
        self.send(piece)

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, *pieces: bytes) -> None:
        """Send more pieces; an empty one ends the body."""
        self._socket.sendall(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))

    def is_answered(self) -> bool:
        """Say whether an answer has begun."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def answer(self) -> str:
        """Wait for the answer and return it, with its head."""
        with http.client.HTTPResponse(self._socket) as answer:
            answer.begin()
            return f"{answer.status} {answer.read().decode()}"


def test_w09_what_is_sent_ends_with_the_key(
    dialect_server: RunningServer, owner: httpx2.Client, two_keys: tuple[Key, Key]
) -> None:
    """Input of commands, files, and requests to a server in the sandbox, from clients that have not sent all."""
    key, other = two_keys

    def sending(of: Key, by: str) -> Sending:
        start = json.dumps({"start": {"process": {"pid": of.pid}}}).encode()
        bearer = {"Authorization": f"Bearer {of.token}"}
        inside = {**of.inside, "E2b-Sandbox-Port": "49983"}

        match by:
            case "input of e2b":
                framed = struct.pack(">BI", 0, len(start)) + start
                headers = {**inside, "Content-Type": "application/connect+json"}
                return Sending(dialect_server, "POST", "/process.Process/StreamInput", headers, framed)
            case "input":
                return Sending(dialect_server, "POST", f"{of.place}/commands/{of.pid}/stdin", bearer, b"a")
            case "port":
                signed = of.client.post(f"{of.place}/ports/8002/sign", json={}).json()["url"]
                return Sending(dialect_server, "POST", urlsplit(signed).path, {}, b"a")
            case "file of e2b":
                headers = {**inside, "Content-Type": "application/octet-stream"}
                return Sending(dialect_server, "POST", "/files?path=sent.txt", headers, b"a")
            case "file":
                return Sending(dialect_server, "PUT", f"{of.place}/files/content?path=sent.txt", bearer, b"a")

        raise AssertionError(by)

    with ExitStack() as opened:
        at_once, at_next_piece = ("input of e2b", "input", "port"), ("file of e2b", "file")
        sent = {by: opened.enter_context(sending(key, by)) for by in (*at_once, *at_next_piece)}
        of_other = {by: opened.enter_context(sending(other, by)) for by in (*at_once, *at_next_piece)}
        assert not any(one.is_answered() for one in sent.values())
        revoked = time.monotonic()
        key.end(owner)

        for by in at_once:
            said = sent[by].answer()
            assert time.monotonic() - revoked < SOON_SECONDS, (by, said)
            assert "unauthenticated" in said or said.startswith(("401", "403")), (by, said)

        # The right is checked with a piece, two seconds after the last check: which piece that is, time decides.
        for by in at_next_piece:
            assert not sent[by].is_answered()
            until(lambda by=by: sent[by].is_answered() or sent[by].send(b"b"), "a piece of it is refused")
            said = sent[by].answer()
            assert said.startswith("401"), (by, said)

        listed = owner.get(f"{key.place}/files").json()["items"]
        assert "sent.txt" not in [item["name"] for item in listed]

        # Control: those of another key go on to their end.
        assert not any(one.is_answered() for one in of_other.values())

        for by in ("input of e2b", "input", "file of e2b", "file"):
            of_other[by].send(b"")
            said = of_other[by].answer()
            assert said.startswith("2"), (by, said)
            assert "error" not in said, (by, said)

        assert other.client.get(f"{other.place}/files/content", params={"path": "sent.txt"}).content == b"a"


def test_w09_what_a_dialect_has_under_way_ends_with_the_key(
    dialect_server: RunningServer, owner: httpx2.Client, two_keys: tuple[Key, Key]
) -> None:
    """Runs, streams of E2B, and WebSockets that a sandbox's token or a signed address has opened; not others'."""
    key, other = two_keys
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
            # A run that had ended by itself, or before, would have said so, and not this.
            assert 0 < at - revoked < SOON_SECONDS, (name, said)
            assert said.startswith(ENDED[name]), (name, said)

        for socket in (by_token, by_signature):
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=SOON_SECONDS)

            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008

        of_other.send("hello")
        assert of_other.recv(timeout=60) == "hello"
