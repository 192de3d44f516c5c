"""T06 at a server: streams, records and WebSockets that flood it, read or not, leave a neighbour's calls alone.

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
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

from .ends import client_of, new_sandbox
from .test_shutdown import gauges, raw_request, reset

# Three rounds, each beside other work of the machine.
pytestmark = pytest.mark.timeout(600)
FLOODS = 2
CALLS = 30
FACTOR = 5
# As fast as it need be, however fast it was beside computing.
FAST_SECONDS = 0.1
ROUNDS = 3
SHORT_LINES = "open('begun', 'w').close()\nwhile True: print('x')"
LONG_LINES = "open('begun', 'w').close()\nwhile True: print('x' * 60_000)"
CHARTS = "open('begun', 'w').close()\nfrom IPython.display import display, HTML\nwhile True: display(HTML('x' * 5_000))"
# JSON of as many values as one message may hold.
VALUES = """
open('begun', 'w').close()
from IPython.display import display
values = [[{}] * 10 for _ in range(10_000)]
while True: display({'application/json': values, 'text/plain': 'x'}, raw=True)
"""
COMPUTING = "open('begun', 'w').close()\nwhile True: pass"
# Reads a stream as fast as it comes; in a process of its own, as a client is.
READER = """
import socket, sys
line = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
line.sendall(sys.argv[2].encode())
while line.recv(1 << 16): pass
"""
# Asks for a stream and reads nothing of it.
SILENT = """
import socket, sys, threading
line = socket.socket()
line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
line.connect(('127.0.0.1', int(sys.argv[1])))
line.sendall(sys.argv[2].encode())
threading.Event().wait()
"""
# Four processes that make calls which are refused, each of which is an event and stands in the record.
REFUSED = """
import ctypes, os
libc = ctypes.CDLL(None)
open('begun', 'w').close()
for _ in range(3):
    if not os.fork(): break
while True: libc.mount(0, 0, 0, 0, 0)
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
# Opens a WebSocket, says one thing, and reads as fast as messages come, or not at all.
LISTENER = """
import sys, threading
from websockets.sync.client import connect
url, token, said, reads = sys.argv[1:]
with connect(url, additional_headers={'Authorization': 'Bearer ' + token}, max_size=None, max_queue=1) as line:
    if said: line.send(said if said[0] == '{' else said.encode())
    print('begun', flush=True)
    if reads != 'reads': threading.Event().wait()
    for _ in line: pass
"""
# Opens WebSockets and sends one frame over each as fast as the server takes it; reads what comes.
SENDER = """
import select, socket, sys
port, token, path, frame, count = sys.argv[1:]
port, frame, count = int(port), bytes.fromhex(frame), int(count)
lines, data = {}, frame * (65_536 // len(frame))
for _ in range(count):
    line = socket.create_connection(('127.0.0.1', port))
    line.sendall(f'GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nAuthorization: Bearer {token}\\r\\n'
        'Connection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\n'
        'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n'.encode())
    assert b' 101 ' in line.recv(4096)
    line.setblocking(False)
    lines[line] = 0
print('begun', flush=True)
while lines:
    readable, writable, _ = select.select(lines, lines, [])
    for line in readable:
        if not line.recv(1 << 16): lines.pop(line)
    for line in set(writable) & set(lines):
        sent = line.send(data[lines[line]:])
        lines[line] = (lines[line] + sent) % len(data)
"""
# In a sandbox: speaks the protocol of WebSockets, or just bytes to who sends a byte, without an end.
SPEAKING = """
import base64, hashlib, os, socket, threading
def serve(line):
    try:
        head = line.recv(4096)
        if head.startswith(b'GET'):
            key = next(one[19:] for one in head.split(b'\\r\\n') if one.lower().startswith(b'sec-websocket-key'))
            accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
            line.sendall(b'HTTP/1.1 101 x\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n'
                b'Sec-WebSocket-Accept: ' + accept + b'\\r\\n\\r\\n')
        while True: line.sendall(%(piece)s)
    except OSError: pass
listener = socket.create_server(('127.0.0.1', 8000), backlog=100)
open('begun', 'w').close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of which nothing else is asked meanwhile."""
    folder = tmp_path_factory.mktemp("flooded")
    running = RunningServer(folder / "state", pool_size=0, audit_folder=str(folder / "audit"))
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
def running(server: Any, api: httpx2.Client, code: str, *, is_read: bool) -> Iterator[list[str]]:
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

        yield ids

    for one in ids:
        api.delete(f"/v1/sandboxes/{one}")


@contextlib.contextmanager
def refused(server: Any, api: httpx2.Client, *, is_read: bool) -> Iterator[None]:
    """Sandboxes that make refused calls without an end, and a client that follows the events of each."""
    port = int(server.url.rpartition(":")[2])

    with running(server, api, REFUSED, is_read=True) as ids:
        heads = [
            f"GET /v1/sandboxes/{one}/audit/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {server.token}\r\n\r\n"
            for one in ids
        ]

        with programs([[READER if is_read else SILENT, str(port), one] for one in heads]):
            for one in ids:
                record = f"/v1/sandboxes/{one}/audit"
                until(lambda record=record: "mount" in api.get(record).text, "it is in the record")

            yield


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


@contextlib.contextmanager
def listening(
    server: Any, api: httpx2.Client, paths: list[str], said: str = "", *, is_read: bool
) -> Iterator[None]:
    """Clients of WebSockets, each of which begins a flood by connecting, or by the first thing it says."""
    base = server.url.replace("http", "ws", 1)
    reads = "reads" if is_read else "reads not"

    with programs([[LISTENER, f"{base}{path}", server.token, said, reads] for path in paths]) as begun:
        for one in begun:
            assert one.stdout is not None
            assert one.stdout.readline() == "begun\n"

        yield


def masked(opcode: int, content: bytes) -> str:
    """A frame of a client in hexadecimal digits; its mask changes nothing."""
    return (bytes([0x80 | opcode, 0x80 | len(content)]) + bytes(4) + content).hex()


@contextlib.contextmanager
def sending(server: Any, path: str, frame: str, count: int = 12) -> Iterator[None]:
    """A client that sends the same frame over several WebSockets without an end."""
    port = server.url.rpartition(":")[2]

    with programs([[SENDER, port, server.token, path, frame, str(count)]]) as begun:
        assert begun[0].stdout is not None
        assert begun[0].stdout.readline() == "begun\n"
        yield


@contextlib.contextmanager
def terminals(server: Any, api: httpx2.Client, line: str, *, is_read: bool) -> Iterator[None]:
    """Terminals whose shells write without an end."""
    ids = [new_sandbox(api) for _ in range(FLOODS)]

    with listening(server, api, [f"/v1/sandboxes/{one}/pty" for one in ids], line, is_read=is_read):
        yield

    for one in ids:
        api.delete(f"/v1/sandboxes/{one}")


@contextlib.contextmanager
def served(server: Any, api: httpx2.Client, path: str, piece: str, *, is_read: bool) -> Iterator[None]:
    """Programs in sandboxes that write to the clients of their port without an end."""
    ids = [new_sandbox(api) for _ in range(FLOODS)]

    for one in ids:
        command = {"argv": ["python3", "-c", SPEAKING % {"piece": piece}]}
        answer = api.post(f"/v1/sandboxes/{one}/commands", json=command)
        assert answer.status_code == 201, answer.text
        begun = f"/v1/sandboxes/{one}/files/info?path=begun"
        until(lambda begun=begun: api.get(begun).status_code == 200, "it listens")

    with listening(server, api, [f"/v1/sandboxes/{one}{path}" for one in ids], "x", is_read=is_read):
        yield

    for one in ids:
        api.delete(f"/v1/sandboxes/{one}")


@contextlib.contextmanager
def watched(server: Any, api: httpx2.Client, code: str, *, is_read: bool) -> Iterator[None]:
    """A kernel whose code writes without an end, and three clients of it."""
    kernel = api.post("/api/kernels", json={}).json()["id"]
    path = f"/api/kernels/{kernel}/channels"
    header = {"msg_id": "1", "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    content = {"code": code, "silent": False}
    asked = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}

    with (
        listening(server, api, [path] * 2, is_read=is_read),
        listening(server, api, [path], json.dumps(asked), is_read=is_read),
    ):
        until(lambda: api.get(f"/api/kernels/{kernel}").json()["execution_state"] == "busy", "it runs")
        yield

    api.delete(f"/api/kernels/{kernel}")


def hold(server: Any, flood: Callable[[httpx2.Client], Any]) -> None:
    """Asserts that a neighbour is answered; a round may be spoilt by other work of the machine."""
    seen = []

    with client_of(server) as api:
        neighbour = new_sandbox(api)
        p95_of_cells(api, neighbour)

        for _ in range(ROUNDS):
            with flood(api):
                taken = p95_of_cells(api, neighbour)

            if taken <= FAST_SECONDS:
                break

            busy = [["while True: pass"]] * FLOODS

            with running(server, api, COMPUTING, is_read=False), programs(busy):
                control = p95_of_cells(api, neighbour)

            seen.append((round(taken, 3), round(control, 3)))

            if taken <= FACTOR * control:
                break
        else:
            raise AssertionError(f"seconds of a cell beside the flood, and beside computing: {seen}")

        api.delete(f"/v1/sandboxes/{neighbour}")


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


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("line", ["yes\n", "while :; do echo; done\n"], ids=["yes", "echo"])
def test_t06_terminals_without_an_end_leave_a_neighbour_alone(flooded: Any, line: str, is_read: bool) -> None:
    """Bytes of terminals over WebSockets, from a program and from the shell itself."""
    hold(flooded, lambda api: terminals(flooded, api, line, is_read=is_read))


@pytest.mark.parametrize(
    ("opcode", "content"),
    [(1, b"x"), (1, b'{"op":"leave","id":1}'), (9, b"")],
    ids=["no message", "nothing to leave", "pings"],
)
def test_t06_clients_of_a_page_that_send_without_an_end_leave_a_neighbour_alone(
    flooded: Any, opcode: int, content: bytes
) -> None:
    """The shortest frames there are: each is cheap, and what the kernel holds of twelve WebSockets is a million."""
    hold(flooded, lambda api: sending(flooded, "/v1/watch", masked(opcode, content)))


def clients_that_left(server: RunningServer) -> int:
    """How many connections a server still holds whose client has finished sending (CLOSE_WAIT)."""
    place = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(line[1].endswith(place) and line[3] == "08" for line in lines)


def test_x11_what_a_flood_has_left_behind_is_not_read(flooded: Any) -> None:
    """Of a client that sent too much and has gone, what the kernel still holds is discarded."""
    with client_of(flooded) as api:
        seen: list[float] = []

        def is_calm() -> bool:
            seen.append(gauges(api)["fumehood_tasks"])
            return len(set(seen[-10:])) == 1 and len(seen) >= 10 and not clients_that_left(flooded)

        # The clients of other tests have been killed a moment ago.
        until(is_calm, "nothing of earlier clients is held")
        before = seen[-1]

        with sending(flooded, "/v1/watch", masked(1, b"x")):
            until(lambda: gauges(api)["fumehood_tasks"] >= before + 12, "all of them are served")
            p95_of_cells(api, neighbour := new_sandbox(api))

        until(lambda: gauges(api)["fumehood_tasks"] <= before + 3, "none of them is")
        api.delete(f"/v1/sandboxes/{neighbour}")


# One message of a byte, and one of 64 KiB; each piece holds many, so that the sender costs little.
SHORT_MESSAGES = "b'\\x82\\x01x' * 20_000"
LONG_MESSAGES = "(b'\\x82\\x7f' + (65_536).to_bytes(8, 'big') + bytes(65_536)) * 8"
# In small writes, each of which is a message of its own at the client.
SMALL_WRITES = "b'x'"


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize(
    ("path", "piece"),
    [
        ("/ports/8000/", SHORT_MESSAGES),
        ("/ports/8000/", LONG_MESSAGES),
        ("/tunnels/8000", "bytes(1 << 20)"),
        ("/tunnels/8000", SMALL_WRITES),
    ],
    ids=["short", "long", "tunnel", "tunnel of bytes"],
)
def test_t06_websockets_of_ports_without_an_end_leave_a_neighbour_alone(
    flooded: Any, path: str, piece: str, is_read: bool
) -> None:
    """What a guest's server says to its clients, as messages and as bytes."""
    hold(flooded, lambda api: served(flooded, api, path, piece, is_read=is_read))


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("code", [SHORT_LINES, CHARTS, VALUES], ids=["short", "charts", "values"])
def test_t06_three_clients_of_a_flooding_kernel_leave_a_neighbour_alone(
    flooded: Any, code: str, is_read: bool
) -> None:
    """Each of them gets all that the code writes."""
    hold(flooded, lambda api: watched(flooded, api, code, is_read=is_read))


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_t06_records_without_an_end_leave_a_neighbour_alone(flooded: Any, is_read: bool) -> None:
    """Refused calls: each is written to the audit record, its file on the disk, and the streams that follow it."""
    hold(flooded, lambda api: refused(flooded, api, is_read=is_read))
