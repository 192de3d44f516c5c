"""Connections to servers inside a sandbox, over the port that every backend implements."""

from __future__ import annotations

import asyncio
import hashlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from fumehood import InvalidArgumentError, PortClosedError, SandboxClosedError, SandboxNotFoundError
from fumehood.api.handle import default_backend
from fumehood.errors import NoHostNameError, OverloadedError
from fumehood.port.backend import Backend
from fumehood.values.requests import ExecuteRequest, SandboxSpec

MIB = 1 << 20
# Servers on all the addresses that a program may listen on; each answers with what it is sent.
SERVER = """
import socket, threading
def serve(family, address, port, answer):
    listener = socket.create_server((address, port), family=family, backlog=200)
    def accept():
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
def echo(sock):
    while data := sock.recv(1 << 20): sock.sendall(data)
    sock.sendall(b'.'); sock.close()
def silent(sock):
    globals().setdefault('kept', []).append(sock)
def reset(sock):
    sock.recv(1)
    sock.close()
serve(socket.AF_INET, '127.0.0.1', 8000, echo)
serve(socket.AF_INET6, '::1', 8001, echo)
serve(socket.AF_INET, '0.0.0.0', 8002, echo)
serve(socket.AF_INET, '127.0.0.1', 8003, silent)
serve(socket.AF_INET, '127.0.0.1', 8004, reset)
# Takes all connections, of which only 128 may wait, and keeps them in silence, without a thread for each.
crowded = socket.create_server(('127.0.0.1', 8005), backlog=128)
crowd = []
def welcome():
    while True: crowd.append(crowded.accept()[0])
threading.Thread(target=welcome, daemon=True).start()
"""

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs on a loop that is not the engine's."""
    with asyncio.Runner() as runner:
        yield runner.run


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Backend, str]]:
    """A sandbox with the servers in it."""
    backend = default_backend()
    info = await backend.create(SandboxSpec())
    try:
        execution = await backend.run(info.id, ExecuteRequest(code=SERVER))
        assert execution.error is None, execution.error
        yield backend, info.id
    finally:
        await backend.kill(info.id)


async def open_all(backend: Backend, sandbox: str, streams: list[Any]) -> None:
    """Opens connections for as long as there is room."""
    while True:
        streams.append(await backend.open_port(sandbox, 8005))


async def read_all(stream: Any) -> bytes:
    pieces = []

    while piece := await stream.read():
        assert len(piece) <= 1 << 16
        pieces.append(piece)

    return b"".join(pieces)


@pytest.mark.parametrize("port", [8000, 8001, 8002])
def test_bytes_go_both_ways_and_each_has_its_end(port, run):
    """On 127.0.0.1, ::1 and 0.0.0.0; after our end the other side may still speak."""

    async def talk() -> None:
        async with served() as (backend, sandbox), await backend.open_port(sandbox, port) as stream:
            await stream.write(b"hello")
            assert await stream.read() == b"hello"
            await stream.end()
            await stream.end()
            assert await read_all(stream) == b"."
            assert await stream.read() == b""

            with pytest.raises(BrokenPipeError):
                await stream.write(b"more")

    run(talk())


def test_much_data_arrives_whole(run):
    """Written faster than it is read: the writer waits, and nothing is lost or kept."""
    block = hashlib.sha256(b"seed").digest() * (MIB // 32)

    async def talk() -> None:
        async with served() as (backend, sandbox), await backend.open_port(sandbox, 8000) as stream:

            async def write() -> None:
                for _ in range(32):
                    await stream.write(block)

                await stream.end()

            writing = asyncio.create_task(write())
            assert await read_all(stream) == block * 32 + b"."
            await writing

    run(talk())


def test_a_writer_waits_for_a_reader(run):
    """Of what nobody reads only so much is taken as fits on the way."""

    async def talk() -> None:
        async with served() as (backend, sandbox), await backend.open_port(sandbox, 8003) as stream:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.write(bytes(64 * MIB)), 0.5)

    run(talk())


def test_a_port_without_a_server_is_a_typed_error(run):
    """It names the port; so does one whose server takes no connection."""

    async def talk() -> None:
        async with served() as (backend, sandbox):
            with pytest.raises(PortClosedError) as caught:
                await backend.open_port(sandbox, 9)

            assert (caught.value.port, caught.value.sandbox_id) == (9, sandbox)

            for wrong in (0, 65_536, -1, True, "80"):
                with pytest.raises(InvalidArgumentError):
                    await backend.open_port(sandbox, wrong)  # type: ignore[arg-type]

    run(talk())


def test_a_server_that_ends_is_an_end(run):
    """It closes with bytes unread; the reader sees the end, the writer that nobody takes more."""

    async def talk() -> None:
        async with served() as (backend, sandbox), await backend.open_port(sandbox, 8004) as stream:
            await stream.write(b"xyz")
            assert await read_all(stream) == b""

            with pytest.raises(BrokenPipeError):
                await stream.write(bytes(8 * MIB))

    run(talk())


def test_connections_are_bounded_and_given_back(run):
    """One too many is refused by name; closed ones make room, also for the sandbox's init."""

    async def talk() -> None:
        async with served() as (backend, sandbox):
            streams: list[Any] = []

            for _ in range(2):
                # Init hears of what was closed a moment later than we.
                while len(streams) < 128:
                    with pytest.raises(OverloadedError):
                        await open_all(backend, sandbox, streams)

                assert len(streams) == 128

                while streams:
                    stream = streams.pop()
                    await stream.close()
                    await stream.close()

    run(talk())


def test_closing_wakes_a_reader(run):
    """A reader in another task reads the end."""

    async def talk() -> None:
        async with served() as (backend, sandbox):
            stream = await backend.open_port(sandbox, 8003)
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            await stream.close()
            assert await reading == b""

    run(talk())


@pytest.mark.parametrize("how", ["kill", "timeout"])
def test_connections_end_with_the_sandbox(how, run):
    """Whoever reads or writes hears why; nothing new can be opened."""

    async def talk() -> None:
        async with served() as (backend, sandbox):
            stream = await backend.open_port(sandbox, 8003)
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)

            if how == "kill":
                await backend.kill(sandbox)
            else:
                await backend.set_timeout(sandbox, 0.01)

            with pytest.raises(SandboxClosedError):
                await reading

            with pytest.raises(SandboxClosedError):
                await stream.write(b"x")

            with pytest.raises(SandboxClosedError):
                await backend.open_port(sandbox, 8000)

            await stream.close()

    run(talk())


def test_a_cancelled_caller_leaves_nothing_open(run):
    """Cancelled on its way, an attempt counts no more."""

    async def talk() -> None:
        async with served() as (backend, sandbox):
            for _ in range(200):
                attempt = asyncio.create_task(backend.open_port(sandbox, 8005))
                await asyncio.sleep(0)
                attempt.cancel()

                # Those that were given up a moment ago may still count.
                with suppress(asyncio.CancelledError, OverloadedError):
                    await (await attempt).close()

            streams: list[Any] = []

            while len(streams) < 128:
                with suppress(OverloadedError):
                    await open_all(backend, sandbox, streams)

            for stream in streams:
                await stream.close()

    run(talk())


def test_an_unknown_sandbox_is_named(run):
    """As by every verb."""
    with pytest.raises(SandboxNotFoundError):
        run(default_backend().open_port("nobody", 80))


def test_a_port_has_an_address(face, sandbox):
    """A browser's way in: it works while the sandbox lives, and not a moment longer."""
    sandbox.run_code(
        "import http.server, threading\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())\n"
        "    def log_message(self, *a): pass\n"
        "s = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()"
    )
    url = sandbox.get_url(8000)

    with urllib.request.urlopen(f"{url}a?b=1", timeout=30) as answer:
        assert answer.read() == b"/a?b=1"

    sandbox.kill()

    # In this process nothing listens any more; a server says that the sandbox has ended.
    with pytest.raises(urllib.error.URLError, match=r"refused|Gone"):
        urllib.request.urlopen(url, timeout=30)


def test_an_address_can_be_waited_for(face, sandbox):
    """Until something listens; or for as long as was asked."""
    with pytest.raises(PortClosedError):
        sandbox.get_url(8001, wait=0.1)

    sandbox.commands.run("sleep 0.5; python -m http.server 8001", background=True)

    with urllib.request.urlopen(sandbox.get_url(8001, wait=True), timeout=30) as answer:
        assert answer.status == 200

    with pytest.raises(InvalidArgumentError, match="wait='soon' is refused"):
        sandbox.get_url(8001, wait="soon")


def test_a_host_name_is_reported_where_there_is_one(face, sandbox):
    """In this process it is the loopback; a server without a domain says so."""
    if face.is_remote:
        with pytest.raises(NoHostNameError):
            sandbox.get_host(8000)
    else:
        assert sandbox.get_url(8000) == f"http://{sandbox.get_host(8000)}/"
