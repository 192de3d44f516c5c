"""The pool of ready sandboxes, without sandboxes."""

from __future__ import annotations

import asyncio

from fumehood.engine.pool import Pool


class Made:
    """Something that waits in a pool."""

    alive = True

    def end(self, reason: str) -> None:
        self.alive = False
        self.reason = reason


def test_what_comes_although_it_was_given_up_is_ended():
    """A pool that is closed keeps nothing, whatever was on its way to it."""

    async def scene():
        begun = asyncio.Event()
        made = Made()

        async def make():
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return made

        pool = Pool("default", 2, make)
        pool.fill()
        await begun.wait()
        pool.close()
        await pool.wait_full()
        await asyncio.sleep(0)
        return made

    assert asyncio.run(scene()).reason == "host_closed"
