"""Shares of the loop: a reader that has more to do than one turn goes on later, and others get their turns between."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

from fumehood.engine.channel import Channel
from fumehood.engine.contexts.output import GuestOutput
from fumehood.engine.loop_share import TURN_SECONDS, LoopShare
from fumehood_wire.frames import encode

FRAME = encode({"type": "stream"}, b"x")
FRAMES = 2000


def spend(seconds: float) -> None:
    """Computes for so long."""
    ends = time.monotonic() + seconds

    while time.monotonic() < ends:
        continue


def open_channel(share: LoopShare | None, on_frame: Any) -> tuple[Channel, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    return Channel(near, on_frame, lambda error: None, share=share), far


def test_a_turn_is_bounded_whatever_the_frames_cost() -> None:
    """All frames lie in the channel at once; the loop gets back to others after a few of them, and none is lost."""

    async def work() -> tuple[int, list[int]]:
        handled = 0
        turns: list[int] = []

        def on_frame(_header: Any, _payload: bytes) -> None:
            nonlocal handled
            handled += 1
            spend(TURN_SECONDS / 10)

        channel, far = open_channel(None, on_frame)
        far.sendall(FRAME * FRAMES)

        while handled < FRAMES:
            before = handled
            await asyncio.sleep(0)

            if handled > before:
                turns.append(handled - before)

        channel.close()
        far.close()
        return handled, turns

    handled, turns = asyncio.run(work())
    assert handled == FRAMES
    # Ten fit into a turn, and one more ends it; a machine that is busy makes it fewer.
    assert max(turns) <= 12


def test_those_who_have_more_to_do_take_turns() -> None:
    """Three floods at once: in one iteration of the loop only one of them goes on, and each gets as many turns."""

    async def work() -> tuple[int, list[str]]:
        order: list[str] = []
        beats = 0
        over = asyncio.Event()

        def reader(name: str) -> Any:
            def take_turn() -> bool:
                order.append(name)
                spend(TURN_SECONDS)

                if len(order) >= 60:
                    over.set()

                return True

            return take_turn

        def beat() -> None:
            nonlocal beats
            beats += 1

            if not over.is_set():
                asyncio.get_running_loop().call_soon(beat)

        pairs = [os.pipe() for _ in range(3)]
        shares = [LoopShare() for _ in pairs]

        for name, share, (read_end, write_end) in zip("abc", shares, pairs, strict=True):
            os.write(write_end, b"x")
            share.add_reader(read_end, reader(name))

        beat()
        await over.wait()

        for share, (read_end, write_end) in zip(shares, pairs, strict=True):
            share.remove_reader(read_end)
            os.close(read_end)
            os.close(write_end)

        return beats, order

    beats, order = asyncio.run(work())
    assert beats >= len(order) - 3
    counts = [order.count(name) for name in "abc"]
    assert max(counts) - min(counts) <= 3


def test_a_reader_that_fails_or_is_removed_does_not_hold_up_the_others() -> None:
    """The loop hears of the fault, and the next turn is another's."""

    async def work() -> tuple[list[str], int]:
        failed: list[str] = []
        handled = 0
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failed.append(str(context["exception"]))
        )
        failing, other = os.pipe(), os.pipe()
        share = LoopShare()

        def fail() -> bool:
            spend(0.1)
            os.read(failing[0], 1)
            raise ValueError("as it should")

        def go_on() -> bool:
            nonlocal handled
            os.read(other[0], 1)
            handled += 1
            share.remove_reader(failing[0])
            return False

        share.add_reader(failing[0], fail)
        share.add_reader(other[0], go_on)
        # Both find the credit used up, and wait in the queue.
        os.write(failing[1], b"xx")

        while len(failed) < 2:
            await asyncio.sleep(0.001)

        os.write(failing[1], b"x")
        os.write(other[1], b"x")

        while not handled:
            await asyncio.sleep(0.001)

        share.remove_reader(other[0])

        for fd in (*failing, *other):
            os.close(fd)

        return failed, handled

    failed, handled = asyncio.run(work())
    assert set(failed) == {"as it should"}
    assert handled == 1


def test_what_pipes_hold_waits_for_the_channel_however_much_lies_in_it() -> None:
    """Text that was sent before comes first, also where the channel takes many turns; and what comes later is read."""

    async def work() -> list[str]:
        seen: list[str] = []
        share = LoopShare()

        def on_frame(_header: Any, _payload: bytes) -> None:
            seen.append("frame")
            spend(TURN_SECONDS / 4)

        near, far = socket.socketpair()
        near.setblocking(False)
        output = GuestOutput(
            lambda: channel.receive(), lambda stream, text, size_bytes, read_at: seen.append(text), share
        )
        channel = Channel(
            near, on_frame, lambda error: None, share=share, on_caught_up=output.note_channel_caught_up
        )
        far.sendall(FRAME * 200)
        os.write(output.write_ends[0], b"first")

        while "first" not in seen:
            await asyncio.sleep(0)

        os.write(output.write_ends[1], b"second")

        while "second" not in seen:
            await asyncio.sleep(0)

        output.close()
        channel.close()
        far.close()
        return seen

    assert asyncio.run(work()) == ["frame"] * 200 + ["first", "second"]


def test_a_flood_leaves_the_loop_time_to_sleep_while_others_use_it() -> None:
    """While another sandbox is served, the turns of a flood are a millisecond apart; when it is alone they are not."""

    async def work() -> list[float]:
        turns = 0
        rates: list[float] = []
        flooded, quiet = os.pipe(), os.pipe()
        shares = [LoopShare(), LoopShare()]

        def flood() -> bool:
            nonlocal turns
            turns += 1
            return True

        def answer() -> bool:
            os.read(quiet[0], 1)
            return False

        shares[0].add_reader(flooded[0], flood)
        shares[1].add_reader(quiet[0], answer)
        os.write(flooded[1], b"x")

        for is_shared in (False, True):
            turns = 0
            began = time.monotonic()

            while (seconds := time.monotonic() - began) < 0.3:
                if is_shared:
                    os.write(quiet[1], b"x")

                await asyncio.sleep(0)

            rates.append(turns / seconds)

        for share, (read_end, write_end) in zip(shares, (flooded, quiet), strict=True):
            share.remove_reader(read_end)
            os.close(read_end)
            os.close(write_end)

        return rates

    alone, beside = asyncio.run(work())
    # In a second; a few more until the other was noticed.
    assert beside <= 1050 < alone
