"""Clients of a kernel that do not read: what waits for them takes what it is as bytes, and no more."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from fumehood.dialects.jupyter.audience import REPLACED, Audience, Client
from fumehood.dialects.jupyter.messages import compose


class Data(dict[str, Any]):
    """What a guest has shown; it can be seen when it goes."""


def taken(client: Client, count: int) -> list[str | bytes | None]:
    async def take() -> list[str | bytes | None]:
        return [await client.next_frame() for _ in range(count)]

    return asyncio.run(take())


@pytest.mark.parametrize("speaks_v1", [False, True])
def test_of_a_message_that_waits_only_its_frame_is_kept(speaks_v1: bool) -> None:
    """Values take thirty times their text in memory."""
    audience = Audience()
    clients = [Client("", None, speaks_v1=speaks_v1) for _ in range(2)]
    shown = Data(a=[{}] * 1000)
    gone = weakref.ref(shown)

    for client in clients:
        audience.join(client)

    audience.broadcast(compose("iopub", "display_data", {"data": {}, "metadata": shown}, session="s"))
    del shown
    assert gone() is None
    (frame,), (other,) = taken(clients[0], 1), taken(clients[1], 1)
    assert frame is other


def test_who_comes_back_gets_what_was_missed() -> None:
    audience = Audience()
    earlier, later = Client("session", None), Client("session", None)
    audience.join(earlier)
    audience.leave(earlier)
    audience.broadcast(compose("iopub", "status", {"execution_state": "busy"}, session="s"))
    audience.join(later)
    assert "busy" in str(taken(later, 1)[0])
    assert earlier.close_code == REPLACED
    assert taken(earlier, 1) == [None]
