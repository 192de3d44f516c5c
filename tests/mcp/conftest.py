"""The official client of the protocol, over both transports, against `fumehood mcp` and `fumehood serve`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult
from tests import forked

SCENE_SECONDS = 60
ARGV = ("-P", "-m", "fumehood", "mcp")
# A server of one test starts without a pool, and with no libraries, which are most of what a start takes.
QUICK = {"FUMEHOOD_POOL_SIZE": "0", "FUMEHOOD_PRELOAD": ""}
# How the client begins: with a handshake (2025-11-25), or with none (2026-07-28).
MODES = {"legacy": "2025-11-25", "auto": "2026-07-28"}

Connect: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def over_stdio(
    mode: str = "auto", options: Sequence[str] = (), **envs: str
) -> AsyncGenerator[Client, None]:
    """A client that has started a server of its own, with options of the command; EVERY_ENGINE=1: a whole program."""
    whole = [sys.executable, *ARGV, *options]
    command, *args = whole if os.environ.get("EVERY_ENGINE") else forked.relayed(["mcp", *options])
    given = {**QUICK, **envs}

    async with Client(StdioServerParameters(command=command, args=args, env=given), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(url: str, token: str, mode: str = "auto") -> AsyncGenerator[Client, None]:
    """A client of a server, with a token."""
    headers = {"Authorization": f"Bearer {token}"}

    async with httpx2.AsyncClient(headers=headers, timeout=SCENE_SECONDS) as http:
        async with Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client:
            yield client


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, server: Any) -> Connect:
    """Connects the client by each transport; the sandboxes live at the same server, which has some ready."""
    if request.param == "stdio":
        return lambda mode="auto": over_stdio(mode, **at(server))

    return lambda mode="auto": over_http(server.url, server.token, mode)


def at(server: Any) -> dict[str, str]:
    """What lets `fumehood mcp` make its sandboxes at a server: an engine of its own takes two seconds to start."""
    return {"FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token}


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Plays a scene to its end, within a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(SCENE_SECONDS):
            await scene()

    asyncio.run(bounded())


def text_of(result: CallToolResult) -> str:
    """The text of an answer."""
    return "\n".join(item.text for item in result.content if item.type == "text")


async def run(client: Client, code: str, sandbox_id: str | None = None, **given: Any) -> CallToolResult:
    """Runs code, which must not fail, and gives the answer."""
    place = {} if sandbox_id is None else {"sandbox_id": sandbox_id}
    result = await client.call_tool("run_code", {"code": code, **place, **given})
    assert not result.is_error, text_of(result)
    return result


async def new_sandbox(client: Client) -> str:
    """Makes a sandbox and gives its id."""
    made: str = (await client.call_tool("create_sandbox", {})).structured_content["sandbox_id"]
    return made
