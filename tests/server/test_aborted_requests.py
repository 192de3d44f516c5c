"""Requests that break off in the middle of their body, at every route: clients that leave are no fault (row X11)."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx2
import pytest
from starlette.routing import BaseRoute
from tests.conftest import RunningServer
from tests.waiting import until

from fumehood.server.anonymous import REFUSALS_BURST
from fumehood.server.body_limits import MAX_UNKNOWN_BODIES_OF_ADDRESS

from .ends import gauges
from .walking import filled

METHODS = ("DELETE", "PATCH", "POST", "PUT")
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b")
# Of one cause a few are written whole, and then one line for all others.
LOG_BYTES = 64 * 1024
# How late an answer may be on a machine that does other things as well.
SLACK_SECONDS = 0.02
FACTOR = 5
# What a call over a new connection takes while another program computes.
QUIET_SECONDS = 0.01
Head = Callable[[str, str, str], bytes]


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with every dialect, of which nothing else is asked meanwhile."""
    running = RunningServer(tmp_path_factory.mktemp("flooded") / "state", pool_size=0)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def heads(flooded: Any) -> dict[str, str]:
    """The headers of those who ask: a stranger, one with a token of nobody, and one with a key."""
    with httpx2.Client(base_url=flooded.url, headers=flooded.headers, timeout=60) as api:
        token = api.post("/v1/keys", json={"name": "floods"}).json()["token"]

    def with_token(value: str) -> str:
        return f"Authorization: Bearer {value}\r\nX-API-Key: {value}\r\nCookie: _xsrf=x\r\n"

    return {"stranger": "Cookie: _xsrf=x\r\n", "unknown": with_token("fh_nobody"), "key": with_token(token)}


@pytest.fixture(scope="module")
def asked(routes: Sequence[BaseRoute]) -> list[tuple[str, str]]:
    """Method and path of everything that may read a body."""
    found = {
        (method, filled(path))
        for route in routes
        if (path := str(getattr(route, "path", ""))).startswith("/")
        for method in (getattr(route, "methods", None) or ())
        if method in METHODS
    }
    assert len(found) > 80
    return sorted(found)


def head(method: str, path: str, headers: str, kind: str = KINDS[0], length: int = 800) -> bytes:
    """What is sent of a request before it breaks off: more is announced than comes."""
    line = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{line}{headers}Content-Length: {length}\r\n\r\n{{".encode()


def break_off(port: int, sent: Sequence[bytes]) -> None:
    """Begin these requests, one connection each, and reset all of them at once."""
    opened = []

    for data in sent:
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), timeout=30)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            opened.append(one)
            one.sendall(data)

    for one in opened:
        one.close()


def p95_while(server: Any, act: Callable[[], None]) -> float:
    """How late 19 of 20 of the owner's calls are answered at most while something goes on."""
    over = threading.Thread(target=act, daemon=True)
    taken = []

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as owner:
        owner.get("/v1/info")
        over.start()

        while over.is_alive():
            begun = time.monotonic()
            assert owner.get("/v1/info").status_code == 200
            taken.append(time.monotonic() - begun)

        over.join()

    return sorted(taken)[int(len(taken) * 0.95)]


@contextlib.contextmanager
def little_is_logged(server: Any) -> Iterator[None]:
    """The log of the server grows by little meanwhile, and holds no traceback."""
    before = len(server.said)

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as owner:
        idle = gauges(owner)["fumehood_tasks"]
        yield
        until(lambda: gauges(owner)["fumehood_tasks"] <= idle, "no request is under way")

    until(lambda: not unread(server.process.stderr), "what was logged is read")
    # But for the access log: a caller with a key has one line for each request.
    said = "".join(line for line in server.said[before:] if " key_id=" not in line)
    assert "Traceback" not in said, said[-2000:]
    assert len(said) < LOG_BYTES, said[-2000:]


def unread(pipe: Any) -> int:
    """How many bytes wait in a pipe."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(waiting)


def port_of(server: Any) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize("who", ["stranger", "unknown", "key"])
def test_x11_a_request_that_breaks_off_is_no_fault_at_any_route(
    flooded: Any, heads: dict[str, str], asked: list[tuple[str, str]], who: str
) -> None:
    """Walks the app: whatever reads the body there, and whoever sends it, nothing of it is logged as a fault."""
    with little_is_logged(flooded):
        for kind in KINDS:
            sent = [head(method, path, heads[who], kind) for method, path in asked]
            break_off(port_of(flooded), sent)


@pytest.mark.serial
@pytest.mark.parametrize("path", ["/login", "/api/kernels"])
def test_w08_broken_off_requests_do_not_slow_the_owner_down(
    flooded: Any, heads: dict[str, str], path: str
) -> None:
    """A flood of them, of a stranger and of a key: the owner's calls take at most five times as long, and no log."""
    port = port_of(flooded)

    def flood() -> None:
        for _ in range(8):
            for headers in heads.values():
                break_off(port, [head("POST", path, headers)] * 40)

    with little_is_logged(flooded):
        for _ in range(3):
            quiet = p95_while(flooded, lambda: time.sleep(0.3))
            busy = p95_while(flooded, flood)

            if busy <= FACTOR * max(quiet, SLACK_SECONDS):
                return

    pytest.fail(f"{busy:.3f} s of a flood against {quiet:.3f} s of quiet, three times")


# A process of its own, as strangers are: its threads would otherwise hold up the owner's. Theirs are processors of
# other machines, so that it takes what the server leaves of these.
STORM = """
import os, socket, struct, sys, threading
os.nice(19)
port, sent = int(sys.argv[1]), sys.argv[2].encode().decode('unicode_escape').encode()
def storm():
    while True:
        opened = []
        for _ in range(60):
            try:
                one = socket.create_connection(('127.0.0.1', port), timeout=5)
                opened.append(one)
                one.sendall(sent)
            except OSError: pass
        for one in opened:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            one.close()
for _ in range(2): threading.Thread(target=storm, daemon=True).start()
threading.Event().wait()
"""


def new_calls_p95(server: Any, seconds: float) -> float:
    """How late 19 of 20 of the owner's calls are answered at most, each over a connection of its own."""
    taken = []
    ends = time.monotonic() + seconds

    while time.monotonic() < ends:
        begun = time.monotonic()
        # A client of httpx2 takes longer to make than the call.
        owner = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
        owner.request("GET", "/v1/info", headers=server.headers)
        assert owner.getresponse().status == 200
        owner.close()
        taken.append(time.monotonic() - begun)
        time.sleep(0.01)

    return sorted(taken)[int(len(taken) * 0.95)]


@pytest.mark.serial
@pytest.mark.parametrize("path", ["/login", "/v1/execute"])
def test_w08_strangers_without_an_end_do_not_slow_the_owner_down(flooded: Any, path: str) -> None:
    """Two clients that begin and break off requests as fast as they can, against 19 of 20 of the owner's calls."""
    quiet = new_calls_p95(flooded, 1.0)
    sent = head("POST", path, "", KINDS[1]).decode("ascii")
    command = [sys.executable, "-c", STORM, str(port_of(flooded)), sent]
    busy = []

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as storm:
        try:
            for _ in range(5):
                busy.append(new_calls_p95(flooded, 3.0))

                if busy[-1] <= FACTOR * max(quiet, QUIET_SECONDS):
                    return
        finally:
            storm.kill()

    pytest.fail(f"{busy} s beside a flood against {quiet:.3f} s of quiet")


def test_w08_refused_strangers_are_answered_before_the_app_sees_them(flooded: Any) -> None:
    """An address that brings no credential is told to wait; a read, and a request with one, are answered as ever."""
    path = "/v1/execute"
    found = None

    with httpx2.Client(base_url=flooded.url, timeout=60) as stranger:
        for _ in range(2 * REFUSALS_BURST):
            found = stranger.post(path, json={"code": "1"})

            if found.status_code == 429:
                break

            assert found.status_code == 401

        assert found is not None
        assert found.json()["code"] == "rate_limited"
        assert found.headers["Retry-After"] == "1"
        assert found.headers["Connection"] == "close"
        assert stranger.get("/v1/info").status_code == 401

    with httpx2.Client(base_url=flooded.url, headers=flooded.headers, timeout=60) as owner:
        assert owner.post("/v1/keys", json={"name": "behind the same address"}).status_code == 201

        # Wrong tokens, by reads as well, end in the same answer, and the right one goes on.
        with httpx2.Client(base_url=flooded.url, timeout=60) as guesser:
            for number in range(2 * REFUSALS_BURST):
                found = guesser.get("/v1/info", headers={"X-API-Key": f"wrong {number}"})

                if found.headers.get("Connection") == "close":
                    break

            assert (found.status_code, found.json()["code"]) == (429, "rate_limited")
            assert found.headers["Connection"] == "close"

        assert owner.get("/v1/info").status_code == 200


@pytest.mark.parametrize(
    ("number", "path", "query", "headers"),
    [
        (1, "/api/kernels", "token=wrong", {}),
        (2, "/api/kernels", "%74oken=wrong", {}),
        (3, "/api/kernels", "", {"Authorization": "token wrong"}),
        (4, "/files", "path=/x&signature=v1_x", {}),
    ],
    ids=["address", "escaped", "header", "signature"],
)
def test_w08_a_wrong_credential_is_counted_wherever_it_stands(
    flooded: Any, number: int, path: str, query: str, headers: dict[str, str]
) -> None:
    """Whatever a dialect refuses it with, and though a route that looks at none has answered it."""
    there = httpx2.HTTPTransport(local_address=f"127.3.0.{number}")

    with httpx2.Client(base_url=flooded.url, headers=headers, transport=there, timeout=60) as guesser:
        assert guesser.get(f"/healthz?{query}").status_code == 200
        answers = []

        for _ in range(2 * REFUSALS_BURST):
            answers.append(guesser.get(f"{path}?{query}"))

            if answers[-1].headers.get("Connection") == "close":
                break

        assert answers[0].status_code in (401, 403)
        assert (answers[-1].status_code, answers[-1].json()["code"]) == (429, "rate_limited")


def test_w08_a_page_of_another_site_keeps_no_visitor_out(flooded: Any) -> None:
    """Its pictures may name addresses here with wrong tokens; what the visitor's own client sends is counted apart."""
    there = httpx2.HTTPTransport(local_address="127.3.0.9")
    page = {"Sec-Fetch-Site": "cross-site"}

    with httpx2.Client(base_url=flooded.url, transport=there, timeout=60) as browser:
        for number in range(2 * REFUSALS_BURST):
            found = browser.get(f"/v1/info?token={number}", headers=page)

            if found.headers.get("Connection") == "close":
                break

        assert found.status_code == 429
        own = browser.get("/v1/info", headers={"X-API-Key": "typed wrongly, once"})
        assert own.status_code == 401


def test_w08_bodies_of_strangers_are_few_at_once(flooded: Any) -> None:
    """An address that sends login forms and never ends them is refused more; what brings a token is not concerned."""
    port = port_of(flooded)
    sent = head("POST", "/login", "Cookie: _xsrf=x\r\n", KINDS[1])

    with contextlib.ExitStack() as held:
        refused = b""

        # The first of them are read, and answered by nothing.
        for _ in range(MAX_UNKNOWN_BODIES_OF_ADDRESS + 1):
            one = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            one.sendall(sent)

        refused = one.recv(1000)
        assert refused.startswith(b"HTTP/1.1 429"), refused
        assert b"retry-after: 1" in refused.lower()

        with httpx2.Client(base_url=flooded.url, headers=flooded.headers, timeout=60) as owner:
            assert owner.post("/v1/keys", json={"name": "meanwhile"}).status_code == 201
