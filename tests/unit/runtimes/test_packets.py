"""The socket to a base jail: whoever is on its other side cannot keep the host busy with it alone."""

from __future__ import annotations

import asyncio
import os
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
        packets.send({}, answers=ENOUGH)
        far.send(b'{"type":"nothing"}')
        # Before the flood, so that its next turn lies in it.
        loop.call_soon(others)
        await over.wait()
        packets.close()
        far.close()
        return before_others

    assert 0 < asyncio.run(work()) < 1000


def test_an_order_allows_its_answers():
    """One more ends the connection, before it is parsed; a flood of them would keep the loop busy."""

    async def work() -> list[object]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        heard: list[object] = []
        over = asyncio.Event()
        packets = PacketSocket(near, heard.append, over.set)
        packets.send({}, answers=2)

        for _ in range(3):
            far.send(b'{"type":"nothing"}')

        await over.wait()
        far.close()
        return heard

    assert asyncio.run(work()) == [{"type": "nothing"}] * 2


def test_large_messages_take_one_turn_each():
    """Parsing is work for each byte: others have their turns in between."""

    async def work() -> list[str]:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        seen: list[str] = []
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def hear(_message: object) -> None:
            seen.append("message")
            loop.call_soon(seen.append, "another")

            if seen.count("message") == 2:
                loop.call_soon(over.set)

        packets = PacketSocket(near, hear, over.set)
        packets.send({}, answers=2)

        for _ in range(2):
            far.send(b'{"text": "' + b"x" * 70_000 + b'"}')

        await over.wait()
        packets.close()
        far.close()
        return seen

    assert asyncio.run(work()) == ["message", "another", "message", "another"]


def test_descriptors_that_come_along_are_not_taken():
    """The kernel drops them; the control is a reader that wants them."""

    def is_open_here(name: str) -> bool:
        return any(name in _link(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))

    async def work() -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        over = asyncio.Event()
        packets = PacketSocket(near, lambda _: over.set(), over.set)
        packets.send({}, answers=1)
        _send_planted(far)
        await over.wait()
        assert not is_open_here("planted")
        packets.close()
        far.close()

    asyncio.run(work())
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    with near, far:
        _send_planted(far)
        received = socket.recv_fds(near, 100, 1)[1]
        assert is_open_here("planted")
        os.close(received[0])


def _send_planted(sock: socket.socket) -> None:
    planted = os.memfd_create("planted")
    socket.send_fds(sock, [b'{"type":"nothing"}'], [planted])
    os.close(planted)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
