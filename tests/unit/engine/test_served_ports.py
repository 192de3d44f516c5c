"""A sandbox whose init lies about the connections to a port on which the host listens, and callers that leave."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import Any

import pytest
from tests.unit.apart import apart, elsewhere  # noqa: F401 - a fixture

from fumehood.engine import served_ports
from fumehood.engine.init_client import InitError
from fumehood.engine.served_ports import ServedPorts
from fumehood.errors import InvalidArgumentError
from fumehood_wire.frames import ProtocolError

PORT = 8080


def descriptors() -> set[str]:
    """What is open, without the descriptor that lists it."""
    found = set()

    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")

    return found


class Init:
    """Plays an init: it keeps the ends that it is given, and knows none of the connections in `gone`."""

    def __init__(self) -> None:
        self.carried: list[int] = []
        self.dropped: list[int] = []
        self.gone: set[int] = set()
        self.failing: set[int] = set()
        self.is_silent = False
        self.is_taken = False
        self.breaches: list[ProtocolError] = []

    async def ask(self, verb: str, *, fds: tuple[int, ...] = (), **fields: Any) -> tuple[Any, bytes]:
        if verb == "listen" and self.is_taken:
            raise InitError("os", "Address already in use", 98)

        if verb == "carry_arrival" and fields["connection_id"] in self.gone:
            raise InitError("os", "No such file or directory", 2)

        if verb == "carry_arrival" and fields["connection_id"] in self.failing:
            raise OSError(errno.EMFILE, "Too many open files")

        if self.is_silent:
            await asyncio.Event().wait()

        if verb == "drop_arrival":
            self.dropped.append(fields["connection_id"])

        if verb == "carry_arrival":
            self.carried.append(fields["connection_id"])

        return None, b""

    def ports(self) -> ServedPorts:
        return ServedPorts(self.ask, lambda: None, self.breaches.append)


def test_connections_that_cannot_be_break_the_wire():
    """To a port on which the host does not listen, and more than wait at once; sixteen are no breach."""

    async def work() -> None:
        init = Init()
        init.ports().note_arrival(PORT, 1)
        assert init.breaches.pop().code == "order"

        ports = init.ports()
        await ports.listen(PORT)

        for number in range(16):
            ports.note_arrival(PORT, number)

        assert not init.breaches
        ports.note_arrival(PORT, 16)
        assert init.breaches[0].code == "order"

    asyncio.run(work())


def test_a_taken_port_is_refused_by_name_and_can_be_asked_for_again():
    """What the kernel says is part of the error."""

    async def work() -> None:
        init = Init()
        ports = init.ports()
        init.is_taken = True

        with pytest.raises(InvalidArgumentError, match="already in use"):
            await ports.listen(PORT)

        ports.note_arrival(PORT, 1)
        assert init.breaches
        init.is_taken = False
        await ports.listen(PORT)
        assert ports.numbers == (PORT,)

    asyncio.run(work())


@apart
def test_connections_are_taken_once_and_none_is_lost_by_a_caller_that_leaves():
    """One that its program has closed is passed over, and a flood of them is taken slowly."""

    async def work() -> None:
        init = Init()
        init.gone = {1}
        ports = init.ports()
        before = descriptors()
        leaving = asyncio.create_task(ports.accept(PORT))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        ports.note_arrival(PORT, 1)
        ports.note_arrival(PORT, 2)

        async with await ports.accept(PORT):
            assert init.carried == [2]

        assert descriptors() <= before

        # As after a flood: the next one is due much later.
        ports._ports[PORT]._paced_until = asyncio.get_running_loop().time() + 1000
        ports.note_arrival(PORT, 3)
        waiting = asyncio.create_task(ports.accept(PORT))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        waiting.cancel()
        await asyncio.wait([waiting])
        ports._ports[PORT]._paced_until = 0.0

        async with await ports.accept(PORT):
            assert init.carried == [2, 3]

    asyncio.run(work())


@apart
def test_what_cannot_be_carried_gives_its_place_in_init_back():
    """Where init refuses, where descriptors run out here, where the caller leaves meanwhile; the next is carried."""

    async def work() -> None:
        init = Init()
        init.gone, init.failing = {1}, {2}
        ports = init.ports()
        before = descriptors()
        await ports.listen(PORT)

        for number in (1, 2, 3):
            ports.note_arrival(PORT, number)

        async with await ports.accept(PORT):
            assert init.carried == [3]
            await asyncio.sleep(0)
            assert init.dropped == [1, 2]

        with pytest.MonkeyPatch.context() as patch:

            def none_left() -> Any:
                patch.undo()
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(served_ports, "open_pair", none_left)
            ports.note_arrival(PORT, 4)
            ports.note_arrival(PORT, 5)

            async with await ports.accept(PORT):
                assert init.carried == [3, 5]
                await asyncio.sleep(0)
                assert init.dropped == [1, 2, 4]

        # An init that answers nothing keeps no caller from leaving.
        init.is_silent = True
        ports.note_arrival(PORT, 6)
        leaving = asyncio.create_task(ports.accept(PORT))
        done, _ = await asyncio.wait([leaving], timeout=0.05)
        assert not done
        init.is_silent = False
        leaving.cancel()
        await asyncio.wait([leaving], timeout=10)
        assert leaving.cancelled()
        await asyncio.sleep(0)
        assert init.dropped == [1, 2, 4, 6]
        assert descriptors() <= before

    asyncio.run(work())
