"""T06: floods that reach the engine by connections, terminals and calls of tools hold up neither it nor a neighbour.

The readers of these are tasks of the engine or functions of the caller. What is measured, and the control, are those of
`test_floods`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.attacks.test_floods import BEGUN, hold
from tests.attacks.test_tools import CALLER, Search
from tests.waiting import until

from fumehood import Limits, Network, SandboxError

LOOPBACK = "127.0.0.1"


class Sink:
    """A server of this machine that takes and sends bytes without an end, on each connection.

    A process of its own does this: its threads would otherwise share the interpreter's lock with the engine.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


SINK = """
import socket, threading
def serve(connection):
    try:
        kind = connection.recv(4)
        while True:
            if kind == b'send': connection.sendall(bytes(65536))
            elif not connection.recv(65536): return
    except OSError:
        return
listener = socket.create_server(('127.0.0.1', 0), backlog=256)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

TUNNELS = """
import os, socket, threading
def carry():
    line = socket.create_connection(('127.0.0.1', 3128))
    line.sendall(b'CONNECT 127.0.0.1:%(port)d HTTP/1.1\\r\\nHost: 127.0.0.1:%(port)d\\r\\n\\r\\n')
    assert b' 200 ' in line.recv(4096)
    line.sendall(b'%(kind)s')
    open('/tmp/begun', 'w').close()
    while True:
        %(move)s
for _ in range(7): threading.Thread(target=carry, daemon=True).start()
carry()
"""
DIALS = """
import socket
%(begun)swhile True:
    held = []
    for _ in range(200):
        line = socket.socket()
        line.setblocking(False)
        line.connect_ex(('127.0.0.1', 3128))
        held.append(line)
    for line in held:
        try: line.setblocking(True); line.settimeout(1); line.sendall(%(said)r); line.recv(100)
        except OSError: pass
        line.close()
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    yield server
    server.close()


@contextmanager
def program(flooder: Any, code: str) -> Iterator[None]:
    """Runs a program that floods, and kills its sandbox afterwards."""
    handle = flooder.sandbox.commands.run(["python3", "-c", code], background=True, timeout=None)
    until(lambda: flooder.sandbox.files.exists("/tmp/begun"), "the flood")
    yield
    assert handle.pid in [process.pid for process in flooder.sandbox.commands.list()], handle.wait()
    flooder.sandbox.kill()


MOVES = {
    "sent": (b"take", "line.sendall(bytes(65536))"),
    "sent in small pieces": (b"take", "line.send(b'x')"),
    "received": (b"send", "line.recv(65536)"),
}


@pytest.mark.parametrize("name", MOVES)
def test_t06_a_flood_of_bytes_through_tunnels_delays_no_other_sandbox(name, make, sink):
    """Eight tunnels of the egress proxy carry what they can."""
    kind, move = MOVES[name]
    network = Network(allow=[f"{LOOPBACK}:{sink.port}"], max_bytes=1 << 50)
    code = TUNNELS % {"port": sink.port, "kind": kind.decode(), "move": move}
    hold(make, lambda: program(make(network=network), code), programs=1)


SAID = {
    "nothing": b"",
    "refused": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    "long heads": b"GET http://evil.example/ HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
}


@pytest.mark.parametrize("name", SAID)
def test_t06_a_flood_of_connections_to_the_proxy_delays_no_other_sandbox(name, make, sink):
    """Connections that are opened and dropped as fast as the guest can."""
    network = Network(allow=[f"{LOOPBACK}:{sink.port}"])
    hold(make, lambda: program(make(network=network), DIALS % {"begun": BEGUN, "said": SAID[name]}))


SERVER = """
import socket, threading
def serve(line):
    try:
        while True: line.sendall(%(piece)s)
    except OSError: pass
listener = socket.create_server(('127.0.0.1', 8000), backlog=100)
%(begun)swhile True:
    line = listener.accept()[0]
    if %(keep)s: threading.Thread(target=serve, args=(line,), daemon=True).start()
    else: line.close()
"""
# Reads what comes, and dials again when the connection has ended: a process of its own, as a client is.
CLIENT = """
import socket, sys, threading
host, _, port = sys.argv[1].rpartition(':')
def dial():
    while True:
        try:
            with socket.create_connection((host, int(port))) as line:
                while line.recv(65536): pass
        except OSError: pass
for _ in range(4): threading.Thread(target=dial, daemon=True).start()
threading.Event().wait()
"""


@contextmanager
def served(flooder: Any, code: str) -> Iterator[None]:
    with program(flooder, code):
        address = flooder.sandbox.get_url(8000).removeprefix("http://").rstrip("/")
        client = subprocess.Popen([sys.executable, "-c", CLIENT, address])
        try:
            yield
        finally:
            client.kill()
            client.wait()


PORTS = {
    "large pieces": {"piece": "bytes(65536)", "keep": True},
    "bytes": {"piece": "b'x'", "keep": True},
    "connections": {"piece": "b''", "keep": False},
}


@pytest.mark.parametrize("name", PORTS)
def test_t06_a_flood_from_a_served_port_delays_no_other_sandbox(name, make):
    """A server in the sandbox whose clients read what they can, or come again and again."""
    hold(make, lambda: served(make(), SERVER % {"begun": BEGUN, **PORTS[name]}), programs=1)


@contextmanager
def terminals(flooder: Any, line: str) -> Iterator[None]:
    for _ in range(8):
        flooder.sandbox.pty.create().send(line)

    yield
    flooder.sandbox.kill()


@pytest.mark.parametrize("line", ["yes\n", "cat /dev/zero\n", "while :; do echo; done\n"])
def test_t06_a_flood_by_terminals_delays_no_other_sandbox(line, make):
    """Eight terminals that write without an end, and nobody reads."""
    hold(make, lambda: terminals(make(), line))


@contextmanager
def calling(flooder: Any, code: str) -> Iterator[None]:
    """Runs code that calls a tool without an end, in one execution after the other."""
    flooder.run(CALLER)
    over = threading.Event()

    def run() -> None:
        try:
            while not over.is_set():
                flooder.sandbox.run_code(code, tools={"search": Search()}, timeout=2)
        except SandboxError:
            return  # it was killed

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: flooder.sandbox.files.exists("/tmp/begun"), "the flood")
        yield
        assert thread.is_alive(), "the flood has ended"
    finally:
        over.set()
        flooder.sandbox.kill()
        thread.join()


CALLS = {
    "honest": f"{BEGUN}while True:\n    try: search(query='x')\n    except Exception: pass",
    "large, by hand": (
        f"big = b'{{\"query\":\"' + b'x' * 1_000_000 + b'\"}}'\n{BEGUN}n = 0\n"
        "while True:\n    n += 1; raw(call(n, big))"
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_t06_a_flood_of_calls_of_tools_delays_no_other_sandbox(name, make):
    """A function of the caller's is called as fast as the guest can, again and again."""
    hold(make, lambda: calling(make(limits=Limits(grace_seconds=0.1)), CALLS[name]))
