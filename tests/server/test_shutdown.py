"""How servers end, and what their clients' ends leave behind: rows X03, X05, X07, X10, X11 and X14."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import RunningServer

from .ends import (
    DEADLINE_SECONDS,
    Following,
    Remains,
    client_of,
    files_in,
    gauges,
    kill,
    new_sandbox,
    run,
    until,
)

Start = Callable[..., Any]
ENDLESS = {"code": "while True: pass"}
# What a server may hold more than before: connections of its pools, and what the kernel has not yet taken back.
SLACK = 3
MIB = 1 << 20


@pytest.fixture
def start_server(start_server: Start) -> Start:
    """Starts servers that have nothing but what these tests need, for the sake of time."""
    return lambda *given, **flags: start_server(*given, **{"pool_size": 0, "dialects": "", **flags})


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that do not end it."""
    running = RunningServer(tmp_path_factory.mktemp("lasting") / "state", pool_size=0, dialects="")
    yield running
    assert running.stop() == 0


@pytest.fixture
def lasting(lasting_server: RunningServer) -> Iterator[RunningServer]:
    """The server for tests that do not end it, without sandboxes of the tests before."""
    yield lasting_server

    with client_of(lasting_server) as api:
        for item in api.get("/v1/sandboxes").json()["items"]:
            api.delete(f"/v1/sandboxes/{item['id']}")


def begin_to_end(server: Any, api: httpx2.Client) -> None:
    """Send the signal, and wait until it is heard."""
    server.process.send_signal(signal.SIGTERM)
    until(lambda: api.get("/readyz").status_code == 503, "the server drains")


# -- X05: a graceful end


def test_x05_what_is_under_way_may_finish(start_server: Start) -> None:
    """New work is refused and told when to come again; code that asked a question gets its answer."""
    server = start_server(drain_seconds=60)

    with client_of(server) as api:
        place = f"/v1/sandboxes/{new_sandbox(api)}/executions"
        remains = Remains(server.process.pid)
        asking = Following(api, place, {"code": "print(input('name? '))", "allow_input": True})
        question = asking.wait_for("input_request")
        execution_id = asking.wait_for("started")["execution_id"]
        begin_to_end(server, api)

        for answer in (api.post("/v1/sandboxes", json={}), api.post("/v1/execute", json={"code": "1"})):
            assert (answer.status_code, answer.json()["code"]) == (503, "server_ending")
            assert answer.json()["outcome_unknown"] is False
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["connection"] == "close"

        given = api.post(
            f"{place}/{execution_id}/input", json={"request_id": question["request_id"], "text": "Ann"}
        )
        assert given.status_code == 204, given.text
        assert asking.end()[-1]["type"] == "finished"
        assert any(line["type"] == "stdout" and "Ann" in line["text"] for line in asking.lines)

    # A second signal would end it otherwise.
    assert server.process.wait(DEADLINE_SECONDS) == 0
    remains.assert_ended()
    remains.assert_swept()
    assert "lock" not in files_in(server.state)


def test_x05_what_takes_too_long_is_reported_and_cut_off(start_server: Start) -> None:
    """A stream ends with a line that says so, other calls with an answer; the exit code says that it happened."""
    server = start_server(drain_seconds=0.3)

    with client_of(server) as api, client_of(server) as second:
        streamed, plain = (f"/v1/sandboxes/{new_sandbox(api)}/executions" for _ in range(2))
        following = Following(api, streamed, ENDLESS)
        following.wait_for("started")
        once = Following(second, plain, ENDLESS)
        once.wait_for("started")

        assert server.stop() == 1

        for stream in (following, once):
            problem = stream.end()[-1]["problem"]
            assert (problem["code"], problem["outcome_unknown"]) == ("server_ending", True)
            assert stream.error is None


def test_x05_a_call_without_a_stream_is_cut_off_with_an_answer(start_server: Start) -> None:
    server = start_server(drain_seconds=0.3)

    async def cut_off() -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=server.url, headers=server.headers, timeout=60) as api:
            call = asyncio.create_task(api.post("/v1/execute", json=ENDLESS))

            while not (await api.get("/v1/info")).json()["sandboxes"]:
                assert not call.done()

            server.process.send_signal(signal.SIGINT)
            return await call

    answer = asyncio.run(cut_off())
    assert (answer.status_code, answer.json()["code"]) == (503, "server_ending")
    assert answer.json()["outcome_unknown"] is True
    assert server.stop() == 1


def test_x05_a_second_signal_ends_at_once(start_server: Start) -> None:
    """However long the drain could be; and still nothing is left."""
    server = start_server(drain_seconds=3600)

    with client_of(server) as api:
        following = Following(api, f"/v1/sandboxes/{new_sandbox(api)}/executions", ENDLESS)
        following.wait_for("started")
        remains = Remains(server.process.pid)
        begin_to_end(server, api)
        assert server.stop() == 1
        following.end()

    remains.assert_ended()
    remains.assert_swept()
    assert "lock" not in files_in(server.state)


# -- X03 and X07: an end that is not graceful


def test_x03_a_killed_server_leaves_nothing_and_its_state_is_whole(
    start_server: Start, tmp_path: Path
) -> None:
    """Five sandboxes at work; afterwards the same state serves again, with the same keys."""
    first = start_server(tmp_path / "state")

    with client_of(first) as api:
        token = api.post("/v1/keys", json={"name": "k"}).json()["token"]

    with client_of(first, token) as api:
        ids = [new_sandbox(api) for _ in range(5)]
        under_way = [Following(api, f"/v1/sandboxes/{one}/executions", ENDLESS) for one in ids]

        for stream in under_way:
            stream.wait_for("started")

        remains = Remains(first.process.pid)
        kill(first)

        for stream in under_way:
            stream.end()
            assert stream.error is not None

    remains.assert_ended()
    second = start_server(tmp_path / "state")

    with client_of(second, token) as api:
        assert {api.get(f"/v1/sandboxes/{one}").status_code for one in ids} == {410}
        assert api.get("/v1/sandboxes").json()["items"] == []
        assert run(api, new_sandbox(api), "6 * 7")["text"] == "42"

    remains.assert_swept()


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_x07_a_damaged_database_is_put_aside(start_server: Start, tmp_path: Path, damage: str) -> None:
    """Row X07: the server starts, says so, and leaves the old file to whoever wants to look at it."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    first = start_server(state)
    first.stop()
    file = state / "fumehood.db"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"\x00garbage" * 1000)

    second = start_server(state)

    with client_of(second) as api:
        assert api.post("/v1/keys", json={"name": "k"}).status_code == 201

    assert [name for name in files_in(state) if name.startswith("fumehood.db.corrupt-")]
    assert any("corrupt" in line for line in second.said)


# -- X10 and X11: clients that do not read, or have gone


def raw_request(
    server: Any, path: str, body: str, *, room_bytes: int = 0, accept: str = "application/x-ndjson"
) -> socket.socket:
    """Send a request and read nothing of its answer."""
    place = urlsplit(server.url)
    connection = socket.socket()

    if room_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)

    connection.connect((place.hostname, place.port))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.token}\r\n"
        f"Accept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall((head + body).encode())
    return connection


def reset(connection: socket.socket) -> None:
    """End a connection as a crash of the client's machine would: with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def settles(api: httpx2.Client, before: dict[str, float]) -> None:
    """See that the server holds no more than it did, but for some slack."""
    names = ("process_open_fds", "fumehood_tasks", "fumehood_sandboxes")
    until(
        lambda: (now := gauges(api)) and all(now[name] <= before[name] + SLACK for name in names),
        f"the server holds no more than {before}",
    )


def peak_memory_bytes(server: RunningServer) -> int:
    """The most resident memory that the server's process has had."""
    fields = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s*(\d+) kB$", fields, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


@pytest.mark.timeout(400)
def test_x10_a_reader_who_does_not_read_costs_others_nothing(lasting: RunningServer) -> None:
    """Row X10: what waits for it is bounded, its neighbours are answered, and its end frees all."""
    server = lasting

    with client_of(server) as api:
        limits = {"stdout_bytes": 64 * MIB}
        slow, other = new_sandbox(api, limits=limits), new_sandbox(api)

        for one in (slow, other):
            # From the first execution on some descriptors of a sandbox stay open.
            run(api, one, "0")

        code = "for _ in range(60): print('x' * 1000000)\nopen('done', 'w').close()"
        path = f"/v1/sandboxes/{slow}/executions"

        # The control: what the same output takes at its peak for a reader who reads.
        with api.stream(
            "POST", path, json={"code": code}, headers={"Accept": "application/x-ndjson"}
        ) as answer:
            assert sum(len(part) for part in answer.iter_bytes()) > 60_000_000

        run(api, slow, "import os; os.remove('done')")
        before, peak_before = gauges(api), peak_memory_bytes(server)
        lazy = raw_request(server, path, json.dumps({"code": code}), room_bytes=4096)

        for _ in range(20):
            assert run(api, other, "6 * 7")["text"] == "42"

        info = f"/v1/sandboxes/{slow}/files/info?path=done"
        # 60 MB, which a machine that is busy with something else needs its time for.
        until(lambda: api.get(info).status_code == 200, "the code has ended, whoever reads", seconds=240)
        # At most five times its output more: text, lines that wait, the last line, its bytes, and those in the socket.
        assert peak_memory_bytes(server) - peak_before < 320 * MIB
        reset(lazy)
        assert run(api, slow, "1 + 1")["text"] == "2"
        settles(api, before)


@pytest.mark.parametrize("leave", [reset, socket.socket.close], ids=["reset", "closed"])
def test_x11_a_client_that_is_gone_with_requests_that_wait_is_gone(
    lasting: RunningServer, leave: Callable[[socket.socket], None]
) -> None:
    """Row X11: nothing is read from its connection meanwhile, but its execution is interrupted all the same."""
    server = lasting
    behind = f"GET /healthz HTTP/1.1\r\nHost: {urlsplit(server.url).netloc}\r\n\r\n".encode()

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        run(api, sandbox_id, "x = 41")
        path = f"/v1/sandboxes/{sandbox_id}/executions"
        code = "open('begun', 'w').close()\nwhile True: pass"
        body = json.dumps({"code": code, "timeout_seconds": 3600})
        connection = raw_request(server, path, body, accept="application/json")
        connection.sendall(behind)
        info = f"/v1/sandboxes/{sandbox_id}/files/info?path=begun"
        until(lambda: api.get(info).status_code == 200, "it runs")
        leave(connection)
        assert run(api, sandbox_id, "x + 1", timeout_seconds=60)["text"] == "42"


def test_x11_a_client_that_is_gone_ends_what_it_followed(lasting: RunningServer) -> None:
    """Row X11: its execution is interrupted, the sandbox and its variables are there for the next."""
    server = lasting

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        run(api, sandbox_id, "x = 41")
        before = gauges(api)

        for _ in range(3):
            connection = raw_request(
                server, f"/v1/sandboxes/{sandbox_id}/executions", '{"code": "while True: pass"}'
            )
            assert connection.recv(16) == b"HTTP/1.1 200 OK\r"
            reset(connection)
            assert run(api, sandbox_id, "x + 1", timeout_seconds=60)["text"] == "42"

        settles(api, before)


def test_x10_a_download_ends_with_its_client(lasting: RunningServer) -> None:
    """Row X10: a file without an end is not read for somebody who has gone."""
    server = lasting

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        run(
            api,
            sandbox_id,
            "import os\nwith open('endless', 'w') as file: os.truncate(file.fileno(), 1 << 40)",
        )
        path = f"/v1/sandboxes/{sandbox_id}/files/content"

        def begin_to_read() -> None:
            with api.stream("GET", path, params={"path": "endless"}) as answer:
                assert next(answer.iter_raw())

        begin_to_read()
        before = gauges(api)

        # More than the slack.
        for _ in range(3 * SLACK):
            begin_to_read()

        settles(api, before)


def test_x11_the_same_request_id_names_two_requests(lasting: RunningServer) -> None:
    """Row X11: it is for logs; what must happen once has an idempotency key."""
    server = lasting

    with client_of(server) as api:
        headers = {"X-Request-Id": "again"}
        answers = [api.post("/v1/execute", json={"code": "6 * 7"}, headers=headers) for _ in range(2)]
        assert [answer.json()["execution"]["text"] for answer in answers] == ["42", "42"]
        assert [answer.headers["x-request-id"] for answer in answers] == ["again", "again"]
        keyed = {"Idempotency-Key": "once"}
        first, second = (api.post("/v1/sandboxes", json={}, headers=keyed) for _ in range(2))
        assert first.json()["id"] == second.json()["id"]
        assert second.headers["idempotent-replayed"] == "true"


def test_x11_a_peer_whose_packets_are_lost_is_noticed(lasting: RunningServer) -> None:
    """Row X11, half-open: the kernel gives such a connection up within a minute and a half."""
    server = lasting

    with client_of(server) as api:
        assert api.get("/healthz").status_code == 200
        port = urlsplit(server.url).port
        fds = Path(f"/proc/{server.process.pid}/fd")
        assert port is not None
        timers = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = [line for line in timers if int(line[1].rpartition(":")[2], 16) == port and line[3] == "01"]
        inodes = {f"socket:[{line[9]}]" for line in ours}
        held = {link for fd in fds.iterdir() if (link := os.readlink(fd)) in inodes}
        assert held
        # proc(5): 02 is a running keepalive timer.
        assert {line[5].partition(":")[0] for line in ours} == {"02"}


# -- X14: calls that are given up


def test_x14_calls_that_are_given_up_at_any_moment_end_once(lasting: RunningServer) -> None:
    """Some dozens of each, at random offsets; afterwards nothing of them is there."""
    server = lasting
    dice = random.Random(14)

    with client_of(server) as api:
        sandbox_id = new_sandbox(api)
        run(api, sandbox_id, "x = 41")
        before = gauges(api)
        outcomes = asyncio.run(_give_up(server, sandbox_id, dice))
        assert sum(outcomes.values()) == 60
        assert outcomes["given up"] > 10, outcomes
        settles(api, before)
        assert run(api, sandbox_id, "x + 1")["text"] == "42"
        assert [one["id"] for one in api.get("/v1/sandboxes").json()["items"]] == [sandbox_id]


async def _give_up(server: Any, sandbox_id: str, dice: random.Random) -> dict[str, int]:
    outcomes = {"given up": 0, "answered": 0}
    limits = httpx2.Limits(max_connections=8)

    async with httpx2.AsyncClient(
        base_url=server.url, headers=server.headers, timeout=DEADLINE_SECONDS, limits=limits
    ) as api:
        place = f"/v1/sandboxes/{sandbox_id}/executions"

        async def call(number: int, seconds: float) -> None:
            path = ("/v1/execute", place)[number % 2]
            task = asyncio.create_task(api.post(path, json={"code": "sum(range(1000000))"}))
            done, _ = await asyncio.wait([task], timeout=seconds)

            if done:
                assert task.result().status_code in (200, 503), task.result().text
                outcomes["answered"] += 1
                return

            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result().status_code == 200
            outcomes["given up"] += 1

        begun = time.monotonic()

        for start in range(0, 60, 6):
            await asyncio.gather(*(call(start + n, dice.uniform(0.0, 0.12)) for n in range(6)))

        assert time.monotonic() - begun < 2 * DEADLINE_SECONDS

    return outcomes
