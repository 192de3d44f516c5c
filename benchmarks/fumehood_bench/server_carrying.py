"""What a server carries into a sandbox: messages of a WebSocket, bytes of a tunnel, and an upload.

Each is measured beside the same without a server between: to the same echo outside of any sandbox, and to a bare
uvicorn that writes what it receives to a file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from websockets.sync.client import ClientConnection, connect

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection, Place
from fumehood_bench.server_process import ServerProcess, serving
from fumehood_bench.timing import Samples, in_turn, milliseconds, percentile

_WEBSOCKET_PORT, _TUNNEL_PORT = 8011, 8012
_WEBSOCKET_TARGET = 12.0
_TUNNEL_TARGET = 30.0
_UPLOAD_TARGET = 10.0
_UPLOAD_BYTES = 64 << 20
_MESSAGE = b"x" * 64
_ROUND_TRIPS = 1000
_UPLOADS = 10
# Sends back what it receives: as messages of a WebSocket at one port, as bytes at the other. It is run in the sandbox,
# and outside.
_ECHO = """
import base64, hashlib, socket, threading

_KEY = b"sec-websocket-key: "
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

def accept_websocket(line):
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += line.recv(4096)
    key = next(part[len(_KEY):] for part in head.split(b"\\r\\n") if part.lower().startswith(_KEY))
    line.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(hashlib.sha1(key + _MAGIC).digest()) + b"\\r\\n\\r\\n")

def echo_messages(line):
    accept_websocket(line)
    stream = line.makefile("rb")
    while head := stream.read(2):
        size = head[1] & 127
        mask = stream.read(4) * (size // 4 + 1)
        content = bytes(a ^ b for a, b in zip(stream.read(size), mask))
        line.sendall(bytes([head[0], size]) + content)

def echo_bytes(line):
    while data := line.recv(65536):
        line.sendall(data)

def serve(listener, echo):
    while True:
        line = listener.accept()[0]
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=echo, args=(line,), daemon=True).start()

def listen(port, echo):
    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, args=(listener, echo), daemon=True).start()
    return listener.getsockname()[1]
"""
_OUTSIDE = """
print(listen(0, echo_messages), listen(0, echo_bytes), flush=True)
threading.Event().wait()
"""
_RECEIVING = """
import socket, sys, uvicorn

async def app(scope, receive, send):
    with open(sys.argv[1], "wb") as file:
        while (message := await receive()).get("more_body"):
            file.write(message["body"])
        file.write(message["body"])
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, http="httptools", loop="asyncio", lifespan="off", log_config=None)
uvicorn.Server(config).run([listener])
"""


def measure(plan: Plan) -> Iterator[Figure]:
    """Yields a figure for each."""
    with serving() as server, server.connect() as connection:
        body = {"timeout_seconds": 3600, "limits": {"memory_bytes": 1 << 30}}
        made = connection.ask(server.place.request("POST", "/v1/sandboxes", body)).json(201)
        path = f"/v1/sandboxes/{made['id']}"
        listen = f"listen({_WEBSOCKET_PORT}, echo_messages); listen({_TUNNEL_PORT}, echo_bytes)"
        begin = server.place.request("POST", f"{path}/executions", {"code": f"{_ECHO}\n{listen}"})
        assert connection.ask(begin).json()["error"] is None

        yield from _round_trips(plan, server, path)
        yield _upload(plan, server, connection, path)


def _round_trips(plan: Plan, server: ServerProcess, path: str) -> Iterator[Figure]:
    with ExitStack() as stack:
        ports = stack.enter_context(_running(_ECHO + _OUTSIDE)).split()
        direct, inside, tunnel = (
            stack.enter_context(_dialled(url, server.place.token))
            for url in (
                f"ws://127.0.0.1:{ports[0]}/",
                f"ws://{server.place.host}:{server.place.port}{path}/ports/{_WEBSOCKET_PORT}/",
                f"ws://{server.place.host}:{server.place.port}{path}/tunnels/{_TUNNEL_PORT}",
            )
        )
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", int(ports[1]))))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        samples = in_turn(
            plan.repetitions(_ROUND_TRIPS),
            block=10,
            direct=lambda: milliseconds(lambda: _ask(direct)),
            inside=lambda: milliseconds(lambda: _ask(inside)),
            plain=lambda: milliseconds(lambda: _ask_plainly(plain)),
            tunnel=lambda: milliseconds(lambda: _ask(tunnel)),
        )

    yield _figure(
        "a message to a WebSocket in a sandbox and back, p50",
        samples, ("inside", "direct"), _WEBSOCKET_TARGET, "the same server outside, without ours",
    )  # fmt: skip
    yield _figure(
        "64 bytes through a tunnel into a sandbox and back, p50",
        samples, ("tunnel", "plain"), _TUNNEL_TARGET, "the same over one TCP connection outside",
    )  # fmt: skip


def _upload(plan: Plan, server: ServerProcess, connection: Connection, path: str) -> Figure:
    content = os.urandom(_UPLOAD_BYTES)

    with tempfile.TemporaryDirectory() as folder:
        with _running(_RECEIVING, str(Path(folder, "received"))) as port:
            place = Place("127.0.0.1", int(port), "")
            stored = _put(server.place, f"{path}/files/content?path=big", content)
            received = _put(place, "/", content)

            with Connection(place) as bare:
                samples = in_turn(
                    plan.repetitions(_UPLOADS),
                    warm_up=1,
                    ours=lambda: milliseconds(lambda: _check(connection, stored)),
                    bare=lambda: milliseconds(lambda: _check(bare, received)),
                )

    size = _UPLOAD_BYTES >> 20
    return _figure(
        f"an upload of {size} MiB into a sandbox, p50",
        samples, ("ours", "bare"), _UPLOAD_TARGET, "to a bare uvicorn that writes a file",
    )  # fmt: skip


def _figure(
    name: str, samples: Samples, names: tuple[str, str], target: float, reference_name: str
) -> Figure:
    ours, reference = (samples[key] for key in names)
    return Figure(
        name=name,
        unit="ms",
        ours=percentile(ours, 50),
        samples=len(ours),
        target=target,
        reference=percentile(reference, 50),
        reference_name=reference_name,
        note=f"p99 {percentile(ours, 99):.2f} ms",
    )


def _dialled(url: str, token: str) -> ClientConnection:
    return connect(url, additional_headers={"Authorization": f"Bearer {token}"}, compression=None)


def _ask(chat: ClientConnection) -> None:
    chat.send(_MESSAGE)
    assert chat.recv() == _MESSAGE


def _ask_plainly(line: socket.socket) -> None:
    line.sendall(_MESSAGE)
    assert line.recv(len(_MESSAGE)) == _MESSAGE


def _put(place: Place, path: str, content: bytes) -> bytes:
    head = (
        f"PUT {path} HTTP/1.1\r\nhost: {place.host}:{place.port}\r\nauthorization: Bearer {place.token}\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _check(connection: Connection, request: bytes) -> None:
    answer = connection.ask(request)
    assert answer.status in (200, 204), f"{answer.status}: {answer.body[:2000]!r}"


@contextmanager
def _running(code: str, *arguments: str) -> Iterator[str]:
    """Runs a program beside, and gives the line that it prints first."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
