"""Ends of a tunnel: only what was ended on purpose reads as an end, and a pause is none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from websockets.asyncio.server import ServerConnection, serve

from fumehood.client.connection import HttpConnection, ServerAddress
from fumehood.errors import HostUnavailableError, SandboxClosedError
from fumehood.port.backend import ByteStream
from fumehood.server.connections import bounded_http
from fumehood.server.http_server import _config
from fumehood.server.settings import ServerSettings

Behaviour = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def tunnel_to(behaviour: Behaviour) -> AsyncIterator[ByteStream]:
    """A tunnel to a server that sends some bytes first, and then does what is asked of it."""

    async def answer(connection: ServerConnection) -> None:
        await connection.send(b"some")
        await behaviour(connection)

    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        connection = HttpConnection(ServerAddress(url=f"http://127.0.0.1:{port}"))

        try:
            async with await connection.tunnel("/tunnel", "sandbox") as stream:
                assert await stream.read() == b"some"
                yield stream
        finally:
            await connection.aclose()


async def _abort(connection: ServerConnection) -> None:
    connection.transport.abort()


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(lambda connection: connection.close(1011, "keepalive ping timeout"), id="1011"),
        pytest.param(lambda connection: connection.close(1012), id="restart"),
        pytest.param(_abort, id="reset"),
        pytest.param(lambda connection: connection.send(b"x" * (2 << 20)), id="a message of any length"),
    ],
)
def test_a_tunnel_that_is_cut_does_not_read_as_an_end(behaviour: Behaviour) -> None:
    """Else half a download would look whole."""

    async def scene() -> None:
        async with tunnel_to(behaviour) as stream:
            for _ in range(2):
                with pytest.raises(HostUnavailableError) as caught:
                    await stream.read()

                assert caught.value.outcome_unknown

    asyncio.run(scene())


def test_an_end_on_purpose_is_an_end() -> None:
    """Also from then on; the end of the sandbox is told as what it is."""

    async def scene() -> None:
        async with tunnel_to(lambda connection: connection.close()) as stream:
            assert [await stream.read(), await stream.read()] == [b"", b""]

        async with tunnel_to(lambda connection: connection.close(1008)) as stream:
            with pytest.raises(SandboxClosedError):
                await stream.read()

        async with tunnel_to(lambda connection: connection.wait_closed()) as stream:
            await stream.close()
            assert await stream.read() == b""

    asyncio.run(scene())


def test_no_side_takes_a_pause_for_a_death() -> None:
    """A pong that waits behind data is late by as long as the other side pauses; TCP tells who is gone."""

    async def scene() -> None:
        async with tunnel_to(lambda connection: connection.wait_closed()) as stream:
            connection = stream._connection  # type: ignore[attr-defined]
            assert connection.keepalive_task is None
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    asyncio.run(scene())

    config = _config(FastAPI(), ServerSettings(), bounded_http())
    assert config.ws_ping_timeout is None
