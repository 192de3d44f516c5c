"""Requests that break off in the middle of their body, at every route: clients that leave are no fault (row X11)."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import socket
import struct
import subprocess
import sys
import termios
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
# Against the same number of connections that send an ordinary request each, measured right before. So both have the
# same share of processors that other programs use, and what is left is what a request costs that breaks off.
FACTOR = 3
# As late as it may be, however fast ordinary requests are beside it.
FAST_SECONDS = 0.05
ROUNDS = 5
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


# A process of its own, as clients are: its threads would otherwise hold up the owner's. Theirs are processors of
# other machines, so that it takes what the server leaves of these. It begins 40 requests at once and resets them.
FLOOD = """
import json, os, socket, struct, sys, threading
os.nice(19)
port, sent, rounds = int(sys.argv[1]), [one.encode() for one in json.loads(sys.argv[2])], int(sys.argv[3])
def flood():
    for number in range(rounds):
        opened = []
        for _ in range(40):
            try:
                one = socket.create_connection(('127.0.0.1', port), timeout=5)
                opened.append(one)
                one.sendall(sent[number % len(sent)])
            except OSError: pass
        for one in opened:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            one.close()
for _ in range(2): threading.Thread(target=flood).start()
"""
ORDINARY = [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
WITHOUT_END = 1 << 30


def p95_beside(server: Any, sent: Sequence[bytes], rounds: int, seconds: float = 60.0) -> float:
    """How late 19 of 20 of the owner's calls are answered at most beside a flood, every other over a new connection."""
    port = port_of(server)
    said = json.dumps([one.decode("ascii") for one in sent])
    taken = []
    ends = time.monotonic() + seconds
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    with subprocess.Popen([sys.executable, "-c", FLOOD, str(port), said, str(rounds)]) as flood:
        while flood.poll() is None and time.monotonic() < ends:
            for owner in (kept, http.client.HTTPConnection("127.0.0.1", port, timeout=60)):
                begun = time.monotonic()
                owner.request("GET", "/v1/info", headers=server.headers)
                answer = owner.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True)
                taken.append(time.monotonic() - begun)

            owner.close()
            time.sleep(0.01)

        flood.kill()

    kept.close()
    return sorted(taken)[int(len(taken) * 0.95)]


def stays_fast(server: Any, sent: Sequence[bytes], rounds: int, seconds: float = 60.0) -> None:
    """The owner's calls take at most some times what they take beside as many ordinary requests.

    In three of five rounds: other work of the machine may spoil one, and a lucky one is no proof.
    """
    tried = []
    held = 0

    for _ in range(ROUNDS):
        ordinary = p95_beside(server, ORDINARY, rounds, seconds)
        busy = p95_beside(server, sent, rounds, seconds)
        tried.append(f"{busy:.3f} s of a flood against {ordinary:.3f} s")
        held += busy <= max(FACTOR * ordinary, FAST_SECONDS)

        if held > ROUNDS // 2:
            return

    pytest.fail("; ".join(tried))


@pytest.mark.serial
@pytest.mark.parametrize("path", ["/login", "/api/kernels"])
def test_w08_broken_off_requests_do_not_slow_the_owner_down(
    flooded: Any, heads: dict[str, str], path: str
) -> None:
    """A flood of them, of strangers and of a key, costs the owner's calls what ordinary ones cost; little is logged."""
    with little_is_logged(flooded):
        stays_fast(flooded, [head("POST", path, headers) for headers in heads.values()], rounds=12)


@pytest.mark.serial
@pytest.mark.parametrize("path", ["/login", "/v1/execute"])
def test_w08_strangers_without_an_end_do_not_slow_the_owner_down(flooded: Any, path: str) -> None:
    """Clients that begin and break off requests as fast as they can, for as long as they like."""
    stays_fast(flooded, [head("POST", path, "", KINDS[1])], rounds=WITHOUT_END, seconds=2.0)


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
