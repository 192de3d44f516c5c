"""Streams of a sandbox that is killed: the connection is reset, so that no client takes what it has for a timeout."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2b_code_interpreter import Sandbox

MEANT = ("ASGI callable returned", "Traceback", "ERROR")
SECONDS = 30


def begun(address: tuple[str, int], request: bytes, first: bytes) -> socket.socket:
    """Sends a request for a stream and returns its connection when the first bytes of the body are there."""
    connection = socket.create_connection(address, timeout=SECONDS)
    connection.sendall(request)
    received = b""

    while first not in received:
        piece = connection.recv(1 << 16)
        assert piece, received
        received += piece

    return connection


def ending(connection: socket.socket) -> str:
    """How a connection ends, behind what was said on it."""
    with connection:
        try:
            while connection.recv(1 << 16):
                continue
        except ConnectionResetError:
            return "reset"

    return "ordinary"


@pytest.fixture
def served(start_server, monkeypatch) -> Any:
    """A server of its own, whose log no other test writes to, and the one that the SDK speaks to."""
    server = start_server(dialects="e2b", pool_size=0)
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
    monkeypatch.setenv("E2B_API_KEY", server.token)
    return server


def test_streams_of_a_killed_sandbox_are_reset(served):
    """A command, a watch and a port: each ends by a reset behind what was said, and the log has no error."""
    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write(
        "drip.py",
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.send_header('Content-Length', '99'); self.end_headers()\n"
        "        self.wfile.write(b'begun'); self.wfile.flush(); import time; time.sleep(600)\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', 3000), H).serve_forever()\n",
    )
    sandbox.commands.run("exec python3 drip.py", background=True, timeout=0)
    listens = (
        "for n in $(seq 300); do (</dev/tcp/127.0.0.1/3000) 2>/dev/null && exit; sleep 0.1; done; exit 1"
    )
    sandbox.commands.run(listens, timeout=60)
    place = urlsplit(served.url)
    address = (place.hostname, place.port)
    named = (
        f"Host: {place.netloc}\r\nE2b-Sandbox-Id: {sandbox.sandbox_id}\r\n"
        f"X-Access-Token: {sandbox._envd_access_token}\r\n"
    )

    def called(method: str, message: object) -> bytes:
        payload = json.dumps(message).encode()
        body = struct.pack(">BI", 0, len(payload)) + payload
        head = (
            f"POST /{method} HTTP/1.1\r\n{named}E2b-Sandbox-Port: 49983\r\n"
            f"Content-Type: application/connect+json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    streams = [
        begun(address, request, first)
        for request, first in (
            (called("process.Process/Start", {"process": {"cmd": "/bin/sleep", "args": ["600"]}}), b"pid"),
            (called("filesystem.Filesystem/WatchDir", {"path": "."}), b"start"),
            (f"GET / HTTP/1.1\r\n{named}E2b-Sandbox-Port: 3000\r\n\r\n".encode(), b"begun"),
        )
    ]
    assert sandbox.kill()

    assert [ending(connection) for connection in streams] == ["reset"] * len(streams)
    assert not [line for line in served.said if any(word in line for word in MEANT)]
