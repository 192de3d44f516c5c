"""Ports inside a sandbox on which a caller outside listens, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fumehood.assemble import remote_backend
from fumehood.errors import InvalidArgumentError, SandboxClosedError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.server.routes import ports as routes
from fumehood.values.requests import ExecuteRequest, SandboxSpec

Talk = Callable[[Backend, str], Coroutine[Any, Any, None]]

CALL = """
import socket
with socket.create_connection(('127.0.0.1', 8123)) as line:
    line.sendall(b'hello')
    said = line.recv(100)
said
"""


LEAVE = "import socket; line = socket.create_connection(('127.0.0.1', 8123))"


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


def waiting(server: Any, sandbox_id: str, token: str) -> connect:
    """A socket that waits for a connection from inside."""
    address = f"{server.url.replace('http', 'ws', 1)}/v1/sandboxes/{sandbox_id}/listeners/8123/next"
    return connect(address, additional_headers={"X-API-Key": token})


def new_sandbox(server: Any, token: str) -> str:
    answer = httpx2.post(f"{server.url}/v1/sandboxes", json={}, headers={"X-API-Key": token}, timeout=60)
    return str(answer.json()["id"])


def test_a_wait_ends_with_the_right_of_its_key(server: Any, api: httpx2.Client) -> None:
    """Within two seconds and a little where nothing arrives; what arrives before goes to no key without the right."""
    made = [api.post("/v1/keys", json={"name": name}).json() for name in ("narrowed", "rotated")]
    narrowed, rotated = (one["key"]["id"] for one in made)
    tokens = [one["token"] for one in made]
    places = [new_sandbox(server, token) for token in tokens]

    async def refusal_of(socket: ClientConnection) -> str:
        with pytest.raises(ConnectionClosed) as closed:
            pytest.fail(f"it got {await asyncio.wait_for(socket.recv(), 15)!r}")

        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        return closed.value.rcvd.reason

    async def wait() -> None:
        async with (
            waiting(server, places[0], tokens[0]) as first,
            waiting(server, places[1], tokens[1]) as second,
        ):
            api.patch(f"/v1/keys/{narrowed}", json={"scopes": ["execute"]}).raise_for_status()
            api.post(f"/v1/keys/{rotated}/rotate", json={}).raise_for_status()
            ran = api.post(f"/v1/sandboxes/{places[1]}/executions", json={"code": LEAVE}).json()
            assert ran.get("error", ran) is None
            assert await refusal_of(second) == "unauthenticated"
            assert await refusal_of(first) == "forbidden"

        # Control: a caller with the right gets what arrives.
        async with waiting(server, places[1], server.token) as owner:
            api.post(f"/v1/sandboxes/{places[1]}/executions", json={"code": LEAVE})
            assert await asyncio.wait_for(owner.recv(), 30) == b"+"

    asyncio.run(wait())

    for place in places:
        api.delete(f"/v1/sandboxes/{place}")


def test_a_key_has_so_many_waits(server: Any, api: httpx2.Client) -> None:
    """One more is refused, until one has ended; the owner has its own."""
    token = api.post("/v1/keys", json={"name": "waits"}).json()["token"]
    place = new_sandbox(server, token)

    async def wait() -> None:
        async with AsyncExitStack() as held:
            sockets = [
                await held.enter_async_context(waiting(server, place, token))
                for _ in range(routes._MAX_WAITS_OF_KEY)
            ]

            with pytest.raises(InvalidStatus) as refused:
                await held.enter_async_context(waiting(server, place, token))

            assert refused.value.response.status_code == 503
            await held.enter_async_context(waiting(server, place, server.token))
            await sockets.pop().close()
            await reopened(held)

    async def reopened(held: AsyncExitStack) -> None:
        """The server learns of a departure a little later than the client."""
        async with asyncio.timeout(30):
            while True:
                try:
                    await held.enter_async_context(waiting(server, place, token))
                except InvalidStatus:
                    await asyncio.sleep(0.05)
                else:
                    return

    asyncio.run(wait())
    api.delete(f"/v1/sandboxes/{place}")
