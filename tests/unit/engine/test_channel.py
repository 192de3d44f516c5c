"""The channel to a guest's init: what is queued arrives as it was given, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from fumehood.engine.channel import Channel
from fumehood_wire.frames import MAX_PAYLOAD_BYTES, encode

CHUNK_BYTES = 1 << 16


def test_a_descriptor_that_is_closed_while_it_waits_is_the_one_that_arrives() -> None:
    """A caller that gives up closes its descriptor, and its number is somebody else's before the socket takes it."""

    async def talk() -> bytes:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        channel = Channel(near, lambda header, payload: None, lambda error: None)
        # More than the socket takes: what comes after it waits.
        channel.send({"type": "request", "id": 1, "verb": "fill"}, b"x" * MAX_PAYLOAD_BYTES)
        meant, told = os.pipe()
        os.write(told, b"meant")
        channel.send({"type": "request", "id": 2, "verb": "take"}, fds=(meant,))
        os.close(meant)
        stranger, other = os.pipe()
        assert stranger == meant
        os.write(other, b"stranger")
        received: list[int] = []

        while not received:
            try:
                _, received, _, _ = socket.recv_fds(far, CHUNK_BYTES, 1)
            except BlockingIOError:
                await asyncio.sleep(0)

        said = os.read(received[0], 100)
        channel.close()
        far.close()

        for fd in (*received, told, stranger, other):
            os.close(fd)

        return said

    assert asyncio.run(talk()) == b"meant"


def test_what_waits_is_let_go_when_the_channel_closes() -> None:
    """The other ends of two pipes tell: where nobody can write any more it ends, where nobody reads it breaks."""

    async def let_go() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        channel = Channel(near, lambda header, payload: None, lambda error: None)
        reader, taken_writer = os.pipe2(os.O_NONBLOCK)
        taken_reader, writer = os.pipe2(os.O_NONBLOCK)
        channel.send({"type": "request", "id": 1, "verb": "fill"}, b"x" * MAX_PAYLOAD_BYTES)
        channel.send({"type": "request", "id": 2, "verb": "take"}, fds=(taken_reader, taken_writer))
        os.close(taken_reader)
        os.close(taken_writer)
        # Control: what waits is held.
        assert os.write(writer, b"x") == 1
        channel.close()

        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")

        assert os.read(reader, 1) == b""

        while far.recv(CHUNK_BYTES):
            pass

        far.close()
        os.close(reader)
        os.close(writer)

    asyncio.run(let_go())


def test_what_a_frame_makes_ready_is_done_once_and_in_order() -> None:
    """Also when it fails: then the loop hears of it, and the next frame comes."""

    async def talk() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        done: list[str] = []
        failed: list[str] = []
        all_done: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(lambda _, context: failed.append(str(context["exception"])))

        def fail() -> None:
            raise ValueError("as it should")

        def take(header: dict[str, Any], _payload: bytes) -> None:
            name = header["type"]

            if name == "one":
                loop.call_soon(done.append, name)
            elif name == "cancelled":
                loop.call_soon(done.append, name).cancel()
            elif name == "failing":
                loop.call_soon(fail)
            else:
                loop.call_soon(done.append, "first")
                loop.call_soon(done.append, "second")
                loop.call_soon(all_done.set_result, None)

        channel = Channel(near, take, lambda error: None)

        for name in ("one", "cancelled", "failing", "one", "several"):
            far.sendall(encode({"type": name}))
            # Each comes in a turn of the loop of its own.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        await all_done
        channel.close()
        far.close()
        return done, failed

    assert asyncio.run(talk()) == (["one", "one", "first", "second"], ["as it should"])
