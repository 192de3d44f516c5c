"""The socket to a base jail: whoever is on its other side cannot keep the host busy with it alone."""

from __future__ import annotations

import asyncio
import socket

from fumehood.runtimes.packets import PacketSocket

ENOUGH = 10_000


def test_a_flood_of_messages_leaves_others_their_turns():
    """Packages of a template run in a process that may say what means nothing, as fast as it likes."""

    async def work() -> int:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said = 0
        before_others = 0

        def hear(_message: object) -> None:
            nonlocal said
            said += 1

            # There is always one more.
            if said < ENOUGH:
                far.send(b'{"type":"nothing"}')

        def others() -> None:
            nonlocal before_others
            before_others = before_others or said

            if said < ENOUGH:
                loop.call_soon(others)
            else:
                over.set()

        loop, over = asyncio.get_running_loop(), asyncio.Event()
        packets = PacketSocket(near, hear, over.set)
        far.send(b'{"type":"nothing"}')
        # Before the flood, so that its next turn lies in it.
        loop.call_soon(others)
        await over.wait()
        packets.close()
        far.close()
        return before_others

    assert 0 < asyncio.run(work()) < 1000
