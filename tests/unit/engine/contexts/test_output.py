"""The pipes of a context: however many frames come behind output that has no end, others get their turns."""

from __future__ import annotations

import asyncio
import os
import time

from fumehood.engine.contexts import output as guest_output
from fumehood.engine.contexts.output import GuestOutput

PIECE = b"x" * 50_000


def test_what_frames_wait_for_is_bounded_in_one_turn():
    """A child writes faster than anybody reads, while its context sends one frame after the other."""

    async def work() -> list[int]:
        seen = 0

        def hear(_stream: str, text: str, size_bytes: int, _at: float) -> None:
            nonlocal seen
            seen += size_bytes

        output = GuestOutput(lambda: None, hear)
        turns = []

        for _ in range(3):
            before = seen

            for _ in range(1000):
                at = time.monotonic()
                os.write(output.write_ends[0], PIECE)
                output.deliver_before({"at": at, "unread_stdout": len(PIECE)})

                if seen - before > guest_output._MAX_TURN_BYTES:
                    break

            turns.append(seen - before)
            # What lies there when the execution ends comes before its end, all the same.
            output.deliver_before({"at": time.monotonic(), "unread_stderr": 4})
            assert seen - before == turns[-1]
            os.write(output.write_ends[1], b"last")
            output.deliver_held(is_last=True)
            assert seen - before == turns[-1] + 4
            await asyncio.sleep(0)

        output.close()
        return turns

    most = guest_output._MAX_TURN_BYTES
    assert all(most < seen <= most + len(PIECE) for seen in asyncio.run(work()))


def test_what_was_written_after_a_frame_stays_behind_it():
    """A frame counts what was unread when it was sent; the host may have read of that, and of what came after."""

    async def work(is_held: bool) -> tuple[list[str], list[str]]:
        seen: list[str] = []
        frames: list[dict[str, object]] = []

        def look() -> bool:
            for header in frames:
                output.deliver_before(header)
                seen.append("frame")

            frames.clear()
            return True

        output = GuestOutput(look, lambda stream, text, *_: seen.append(f"{stream} {text}"))
        os.write(output.write_ends[0], b"before")
        frames.append({"at": time.monotonic(), "unread_stdout": 6})
        os.write(output.write_ends[0], b"after")
        os.write(output.write_ends[1], b"after")

        # Either the pipe is read first, or the channel.
        if is_held:
            output._ready(next(fd for fd, stream in output._streams.items() if stream == "stdout"))
        else:
            look()

        first = [*seen]
        # Bytes that the host has read since the frame was sent are not counted twice.
        output.deliver_before({"at": 0.0, "unread_stdout": 6})
        second = seen[len(first) :]
        output.close()
        return first, second

    assert asyncio.run(work(is_held=True)) == (["stdout before", "frame", "stdout after"], [])
    assert asyncio.run(work(is_held=False)) == (["stdout before", "frame"], [])
