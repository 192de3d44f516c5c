"""The host's side of the conversation with init, when init breaks the wire: nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.engine.channel import open_pair
from fumehood.engine.init_client import InitClient, InitGoneError
from fumehood_wire.frames import ProtocolError, encode


def test_a_reply_that_breaks_the_wire_is_reported_to_its_asker() -> None:
    """Its number is right and its value is not: the channel ends, and so does the wait for it."""
    ends: list[ProtocolError | None] = []

    async def main() -> None:
        near, far = open_pair()
        client = InitClient(near, lambda header, payload: None, ends.append)
        asking = asyncio.ensure_future(client.ask("stat", path="/"))
        far.setblocking(True)
        await asyncio.to_thread(far.recv, 1 << 16)
        far.sendall(encode({"type": "reply", "id": 1, "ok": True, "value": {"nothing": "of it"}}))

        async with asyncio.timeout(10):
            with pytest.raises(InitGoneError):
                await asking

        far.close()

    asyncio.run(main())
    assert [end.code for end in ends if end is not None] == ["field"]
