"""X13: the egress gateway fails. It is closed then: no way around it, and the next connection is served again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fumehood import Network, Sandbox, Template, failpoints
from fumehood.egress.proxy_connection import ProxyConnection
from fumehood.portal import shared_portal

FETCH = """
import socket, urllib.request
def fetch():
    try:
        return urllib.request.urlopen(URL, timeout=20).read().decode()
    except OSError as error:
        return 'failed'
def direct():
    try:
        return socket.create_connection(('127.0.0.1', PORT), timeout=5) and 'connected'
    except OSError:
        return 'refused'
"""


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Hello)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def sandbox(port: int) -> Iterator[Sandbox]:
    network = Network(
        allow=[f"web.example.com:{port}", f"127.0.0.1:{port}"], hosts={"web.example.com": "127.0.0.1"}
    )

    with Sandbox(template=Template(name="plain", preload=()), network=network) as made:
        made.run_code(f"PORT = {port}\nURL = 'http://web.example.com:{port}/'\n{FETCH}")
        yield made


def fetched(sandbox: Sandbox, call: str = "fetch()") -> str | None:
    return sandbox.run_code(call).text


def _no_descriptor(_subject: object) -> None:
    raise OSError(24, "Too many open files")


def test_x13_a_connection_that_cannot_be_made_is_closed(sandbox: Sandbox) -> None:
    """The host has no descriptor left for it."""
    assert fetched(sandbox) == "'hello'"

    with failpoints.arm("egress.carry", _no_descriptor):
        assert fetched(sandbox) == "'failed'"
        assert fetched(sandbox, "direct()") == "'refused'"

    assert fetched(sandbox) == "'hello'"


@pytest.mark.parametrize("fault", ["an error", "its end"])
def test_x13_what_serves_a_connection_dies(
    sandbox: Sandbox, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest sees its connection end, the host goes on, and says so where it is a fault of ours."""
    told: list[str] = []
    shared_portal().loop.set_exception_handler(lambda _, context: told.append(repr(context.get("exception"))))

    async def die(_proxy_connection: ProxyConnection) -> None:
        if fault == "its end":
            raise asyncio.CancelledError

        raise RuntimeError("a fault of ours")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(ProxyConnection, "run", die)
            assert fetched(sandbox) == "'failed'"
            assert fetched(sandbox, "direct()") == "'refused'"

        assert fetched(sandbox) == "'hello'"
    finally:
        shared_portal().loop.set_exception_handler(None)

    assert ("RuntimeError('a fault of ours')" in told) == (fault == "an error")
