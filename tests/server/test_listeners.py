"""Ports inside a sandbox on which a caller outside listens, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fumehood.assemble import remote_backend
from fumehood.errors import InvalidArgumentError, SandboxClosedError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.values.requests import ExecuteRequest, SandboxSpec

Talk = Callable[[Backend, str], Coroutine[Any, Any, None]]

CALL = """
import socket
with socket.create_connection(('127.0.0.1', 8123)) as line:
    line.sendall(b'hello')
    said = line.recv(100)
said
"""


@pytest.fixture
def talk(server) -> Callable[[Talk], None]:
    """Runs a talk with one sandbox, over HTTP and in the engine of this process."""

    async def run(talking: Talk, backend: Backend) -> None:
        info = await backend.create(SandboxSpec())
        try:
            await talking(backend, info.id)
        finally:
            await backend.kill(info.id)

    def both(talking: Talk) -> None:
        with asyncio.Runner() as runner:
            runner.run(run(talking, remote_backend(server.url, server.token)))

    return both


def test_a_program_reaches_the_caller_that_listens(talk):
    """Bytes go both ways; the isolation that is reported names the port; a port of a program's own is left alone."""

    async def meet(backend: Backend, sandbox_id: str) -> None:
        await backend.listen_port(sandbox_id, 8123)
        calling = asyncio.create_task(backend.run(sandbox_id, ExecuteRequest(code=CALL)))

        async with await backend.accept_port(sandbox_id, 8123) as stream:
            assert await stream.read() == b"hello"
            await stream.write(b"welcome")

        execution = await calling
        assert execution.error is None, execution.error
        assert "welcome" in str(execution.text)
        (network,) = [
            one for one in (await backend.info(sandbox_id)).isolation.layers if one.name == "network"
        ]
        assert "port 8123 of the loopback" in network.why

        taken = ExecuteRequest(code="taken = socket.create_server(('127.0.0.1', 8124))")
        assert (await backend.run(sandbox_id, taken)).error is None

        with pytest.raises(InvalidArgumentError, match="in use"):
            await backend.listen_port(sandbox_id, 8124)

    talk(meet)


def test_who_waits_learns_of_the_end_and_who_leaves_loses_nothing(talk):
    """A wait that is given up leaves the connection to the next; the end of the sandbox ends every wait."""

    async def leave(backend: Backend, sandbox_id: str) -> None:
        for _ in range(3):
            waiting = asyncio.create_task(backend.accept_port(sandbox_id, 8123))
            await asyncio.wait([waiting], timeout=0.1)
            waiting.cancel()
            await asyncio.wait([waiting])

        calling = asyncio.create_task(backend.run(sandbox_id, ExecuteRequest(code=CALL)))

        async with await backend.accept_port(sandbox_id, 8123) as stream:
            await stream.write(b"welcome")

        assert (await calling).error is None
        waiting = asyncio.create_task(backend.accept_port(sandbox_id, 8123))
        await asyncio.wait([waiting], timeout=0.1)
        await backend.kill(sandbox_id)

        with pytest.raises(SandboxClosedError):
            await waiting

        with pytest.raises((SandboxClosedError, SandboxNotFoundError)):
            await backend.listen_port(sandbox_id, 8123)

    talk(leave)
