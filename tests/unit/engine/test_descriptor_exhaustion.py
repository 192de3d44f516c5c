"""Row X09, from within: what finds no free descriptor in the middle gives back all that it has taken before.

The tests run in a process that has nothing else to do: another thread that opens or closes one would be counted.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.unit.apart import apart, elsewhere  # noqa: F401 - a fixture

from fumehood.engine.channel import Channel
from fumehood.engine.clock import Idleness, SandboxClock
from fumehood.engine.commands import LiveProcesses
from fumehood.engine.contexts.process import new_link
from fumehood.engine.init_client import InitClient
from fumehood.engine.loop_share import LoopShare
from fumehood.runtimes.packets import copies
from fumehood.values.limits import Limits
from fumehood.values.requests import ProcessSpec, PtySize


@contextmanager
def only(free: int) -> Iterator[Callable[[], int]]:
    """Leaves this process so many descriptors that it may still open; gives how many there are left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + free + 10
    taken: list[int] = []

    def take_all() -> list[int]:
        more = []

        while True:
            try:
                more.append(os.dup(2))
            except OSError:
                return more

    def left() -> int:
        found = take_all()

        for fd in found:
            os.close(fd)

        return len(found)

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        taken = take_all()

        for _ in range(free):
            os.close(taken.pop())

        yield left
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        for fd in taken:
            os.close(fd)


async def _context(undo: ExitStack) -> None:
    link = new_link(Limits(), lambda _: None, LoopShare())
    undo.callback(link.close)


async def _command(undo: ExitStack, pty: PtySize | None = None) -> None:
    async def ask(*_: Any, **__: Any) -> tuple[Any, bytes]:
        return {"pid": 7}, b""

    clock = SandboxClock()
    processes = LiveProcesses(ask, Limits(), {}, clock, Idleness(clock))
    await processes.start(ProcessSpec(argv=("x",), pty=pty))
    undo.callback(processes.note_exit, 7, 0)


async def _terminal(undo: ExitStack) -> None:
    await _command(undo, PtySize())


async def _copies(undo: ExitStack) -> None:
    for fd in copies([0, 1, 2]):
        undo.callback(os.close, fd)


@apart
@pytest.mark.parametrize(("make", "needed"), [(_context, 6), (_command, 5), (_terminal, 2), (_copies, 3)])
def test_what_cannot_be_made_gives_back_what_it_has_taken(make, needed):
    """Whatever the number of those that are free: too few of them, and all are free again; enough, and it is made."""

    async def work() -> None:
        loop = asyncio.get_running_loop()

        for free in range(needed + 2):
            watched = len(loop._selector.get_map())

            with only(free) as left, ExitStack() as undo:
                error = None
                try:
                    await make(undo)
                except OSError as raised:
                    error = raised.errno

                assert (free, error) == (free, errno.EMFILE if free < needed else None)

                if error is not None:
                    assert (left(), len(loop._selector.get_map())) == (free, watched)

    asyncio.run(work())


@apart
@pytest.mark.parametrize("is_full", [False, True])
def test_a_frame_with_descriptors_that_cannot_be_kept_leaves_none(is_full):
    """They are copied where the socket takes nothing now; otherwise they need no copy, and travel even then."""

    async def work() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        channel = Channel(near, lambda *_: None, lambda _: None)

        if is_full:
            channel.send({"type": "x"}, b"x" * (4 << 20))

        for free in range(3):
            with only(free) as left:
                if is_full:
                    with pytest.raises(OSError, match="Too many open files"):
                        channel.send({"type": "x"}, fds=[0, 1, 2])
                else:
                    channel.send({"type": "x"}, fds=[0, 1, 2])

                assert left() == free

        if not is_full:
            _, fds, _, _ = socket.recv_fds(far, 1 << 16, 20)
            assert len(fds) == 3

            for fd in fds:
                os.close(fd)

        channel.close()
        far.close()

    asyncio.run(work())


@apart
def test_who_cannot_pass_a_descriptor_hears_it_and_the_channel_goes_on():
    """One that is closed is nobody's breach; a side that has gone is the end, with descriptors as without."""

    async def work() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        ends: list[Any] = []
        channel = Channel(near, lambda *_: None, ends.append)

        with pytest.raises(OSError, match="Bad file descriptor"):
            channel.send({"type": "x"}, fds=[-1])

        assert not channel.closed
        far.close()
        channel.send({"type": "x"}, fds=[0])
        assert (channel.closed, ends) == (True, [None])

    asyncio.run(work())


@apart
def test_a_request_that_cannot_be_sent_is_not_waited_for():
    """Init does not know it; the next one goes as any other."""

    async def work() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        init = InitClient(near, lambda *_: None, lambda _: None)
        big = asyncio.ensure_future(init.ask("write", b"x" * (4 << 20)))
        await asyncio.sleep(0)

        with only(0), pytest.raises(OSError, match="Too many open files"):
            await init.ask("start_process", fds=[0])

        assert len(init._waiting) == 1
        big.cancel()
        init.close()
        await asyncio.wait([big])
        far.close()

    asyncio.run(work())


@apart
def test_the_measure_measures():
    """A descriptor that stays open is missing afterwards."""
    for free in itertools.islice(itertools.count(1), 3):
        with only(free) as left:
            assert left() == free
            fd = os.dup(0)
            assert left() == free - 1
            os.close(fd)
