"""T06 at a server: streams and WebSockets that flood it, or that nobody reads, leave a neighbour's calls alone.

The control is the same sandboxes and as many programs of the machine, computing: a flood takes processor time
wherever it is read. What is left is what the server itself holds up.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

from .ends import client_of, new_sandbox
from .test_shutdown import raw_request, reset

FLOODS = 2
CALLS = 30
FACTOR = 5
ROUNDS = 3
SHORT_LINES = "open('begun', 'w').close()\nwhile True: print('x')"
LONG_LINES = "open('begun', 'w').close()\nwhile True: print('x' * 60_000)"
CHARTS = "open('begun', 'w').close()\nfrom IPython.display import display, HTML\nwhile True: display(HTML('x' * 5_000))"
COMPUTING = "open('begun', 'w').close()\nwhile True: pass"
# Reads a stream as fast as it comes; in a process of its own, as a client is.
READER = """
import socket, sys
line = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
line.sendall(sys.argv[2].encode())
while line.recv(1 << 16): pass
"""
# Asks over a WebSocket as fast as it can, and reads nothing of the answers, or all.
ASKER = """
import json, sys, threading
from websockets.sync.client import connect
url, token, kind, reads = sys.argv[1:]
header = {'msg_id': '1', 'msg_type': kind, 'session': 's', 'username': '', 'version': '5.3'}
said = json.dumps({'header': header, 'parent_header': {}, 'metadata': {}, 'content': {'code': '', 'silent': True},
    'channel': 'shell'})
with connect(url, additional_headers={'Authorization': 'Bearer ' + token}, max_size=None, max_queue=1) as line:
    if reads == 'reads':
        threading.Thread(target=lambda: [None for _ in line], daemon=True).start()
    print('begun', flush=True)
    while True: line.send(said)
"""


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of which nothing else is asked meanwhile."""
    running = RunningServer(tmp_path_factory.mktemp("flooded") / "state", pool_size=0)
    yield running
    assert running.stop() == 0


def p95_of_cells(api: httpx2.Client, sandbox_id: str) -> float:
    """How long a neighbour's cells take, but for one in twenty."""
    taken = []

    for _ in range(CALLS):
        began = time.perf_counter()
        answer = api.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": "1"})
        taken.append(time.perf_counter() - began)
        assert answer.status_code == 200, answer.text

    return sorted(taken)[int(len(taken) * 0.95)]


@contextlib.contextmanager
def programs(arguments: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    begun = [
        subprocess.Popen([sys.executable, "-c", *one], stdout=subprocess.PIPE, text=True) for one in arguments
    ]
    try:
        yield begun
    finally:
        for one in begun:
            one.kill()
            one.communicate()


@contextlib.contextmanager
def running(server: Any, api: httpx2.Client, code: str, *, is_read: bool) -> Iterator[None]:
    """Runs code in some sandboxes over streams that are read as fast as can be, or not at all."""
    port = int(server.url.rpartition(":")[2])
    ids = [new_sandbox(api) for _ in range(FLOODS)]
    body = json.dumps({"code": code})
    heads = [
        f"POST /v1/sandboxes/{one}/executions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {server.token}\r\nAccept: application/x-ndjson\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        for one in ids
    ]

    with contextlib.ExitStack() as held:
        if is_read:
            held.enter_context(programs([[READER, str(port), one] for one in heads]))
        else:
            for one in ids:
                path = f"/v1/sandboxes/{one}/executions"
                held.callback(reset, raw_request(server, path, body, room_bytes=4096))

        for one in ids:
            begun = f"/v1/sandboxes/{one}/files/info?path=begun"
            until(lambda begun=begun: api.get(begun).status_code == 200, "it has begun")

        yield

    for one in ids:
        api.delete(f"/v1/sandboxes/{one}")


@contextlib.contextmanager
def asking(server: Any, api: httpx2.Client, kind: str, *, is_read: bool) -> Iterator[None]:
    """Clients of Jupyter kernels that ask without an end."""
    kernels = [api.post("/api/kernels", json={}).json()["id"] for _ in range(FLOODS)]
    base = server.url.replace("http", "ws", 1)
    clients = [
        [ASKER, f"{base}/api/kernels/{one}/channels", server.token, kind, "reads" if is_read else "reads not"]
        for one in kernels
    ]

    with programs(clients) as begun:
        for one in begun:
            assert one.stdout is not None
            assert one.stdout.readline() == "begun\n"

        yield

    for one in kernels:
        api.delete(f"/api/kernels/{one}")


def hold(server: Any, flood: Callable[[httpx2.Client], Any]) -> None:
    """Asserts that a neighbour is answered; a round may be spoilt by other work of the machine."""
    seen = []

    with client_of(server) as api:
        neighbour = new_sandbox(api)
        p95_of_cells(api, neighbour)

        for _ in range(ROUNDS):
            busy = [["while True: pass"]] * FLOODS

            with running(server, api, COMPUTING, is_read=False), programs(busy):
                control = p95_of_cells(api, neighbour)

            with flood(api):
                taken = p95_of_cells(api, neighbour)

            seen.append(taken / control)

            if taken <= FACTOR * control:
                break

        api.delete(f"/v1/sandboxes/{neighbour}")

    assert min(seen) <= FACTOR, f"times as slow as beside computing: {seen}"


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("code", [SHORT_LINES, LONG_LINES, CHARTS], ids=["short", "long", "charts"])
def test_t06_streams_without_an_end_leave_a_neighbour_alone(flooded: Any, code: str, is_read: bool) -> None:
    """Streams of output, lines of JSON for each, that somebody reads as fast as they come, or holds and never reads."""
    hold(flooded, lambda api: running(flooded, api, code, is_read=is_read))


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("kind", ["kernel_info_request", "execute_request"])
def test_t06_websockets_that_ask_without_an_end_leave_a_neighbour_alone(
    flooded: Any, kind: str, is_read: bool
) -> None:
    """Messages to kernels as fast as the server takes them, whether their answers are read or not."""
    hold(flooded, lambda api: asking(flooded, api, kind, is_read=is_read))
