"""What a host keeps for its MCP client: as many sandboxes as it may, and none that is ended for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fumehood import CapacityError
from fumehood.client.backend import HttpBackend
from fumehood.client.connection import ServerAddress
from fumehood.mcp import caller as keeping
from fumehood.mcp.caller import Caller, SandboxOptions

from .conftest import play


@asynccontextmanager
async def launcher(server: Any) -> AsyncIterator[Caller]:
    """A host whose sandboxes live at a server."""
    address = ServerAddress(url=server.url, token=server.token)
    backend = HttpBackend(address, asyncio.get_running_loop())
    kept = Caller(backend=backend, keeps=True)
    try:
        yield kept
    finally:
        await kept.kill_all()
        await backend.aclose()


def test_a_host_keeps_no_more_than_it_may_however_many_are_asked_for_at_once(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_MAX_KEPT", 2)

    async def scene() -> None:
        async with launcher(server) as kept:

            async def make() -> str:
                async with kept.new(SandboxOptions()) as sandbox:
                    return sandbox.id

            made = await asyncio.gather(*(make() for _ in range(5)), return_exceptions=True)
            assert [type(one) for one in made if not isinstance(one, str)] == [CapacityError] * 3
            # Control: one that has ended makes room for another.
            assert await kept.kill(next(one for one in made if isinstance(one, str)))
            assert await make()

    play(scene)


def test_room_is_not_made_by_ending_what_is_new(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came to be after it was asked what lives has not ended."""
    monkeypatch.setattr(keeping, "_MAX_KEPT", 3)

    async def scene() -> None:
        async with launcher(server) as kept:

            async def make() -> str:
                async with kept.new(SandboxOptions()) as sandbox:
                    return sandbox.id

            ended, second, _ = [await make() for _ in range(3)]
            assert kept.backend is not None
            assert await kept.backend.kill(ended)
            listed, goes_on, ask = asyncio.Event(), asyncio.Event(), kept.list

            async def slowly() -> Any:
                found = await ask()
                listed.set()
                await goes_on.wait()
                return found

            monkeypatch.setattr(kept, "list", slowly)
            fourth = asyncio.create_task(make())
            await listed.wait()
            assert await kept.kill(second)
            fifth = await make()
            goes_on.set()
            made = {await fourth, fifth}
            assert made <= {info.id for info in await ask()}

    play(scene)
