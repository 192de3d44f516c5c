"""The pipes of a context: however many frames come behind output that has no end, others get their turns."""

from __future__ import annotations

import asyncio
import os

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
                os.write(output.write_ends[0], PIECE)
                output.deliver_held()

                if seen - before > guest_output._MAX_TURN_BYTES:
                    break

            turns.append(seen - before)
            # What lies there when the execution ends comes before its end, all the same.
            output.deliver_held()
            assert seen - before == turns[-1]
            os.write(output.write_ends[1], b"last")
            output.deliver_held(is_last=True)
            assert seen - before == turns[-1] + 4
            await asyncio.sleep(0)

        output.close()
        return turns

    most = guest_output._MAX_TURN_BYTES
    assert all(most < seen <= most + len(PIECE) for seen in asyncio.run(work()))
