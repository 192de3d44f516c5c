"""A sandbox whose init lies: it asks for more connections than it may, for none, and for the same one twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import pytest

from fumehood.engine.egress import LiveEgress
from fumehood.engine.init_client import InitError, InitGoneError
from fumehood.values.network import Network
from fumehood.values.sandbox import Isolation, Layer
from fumehood_wire.frames import ProtocolError


class Init:
    """Plays an init: it answers as it was told to, and keeps the ends that it is given."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.asked: list[str] = []
        self.breaches: list[ProtocolError] = []
        self.ends: list[int] = []
        self.answers = True

    async def ask(self, verb: str, *, fds: tuple[int, ...] = (), **_: Any) -> tuple[Any, bytes]:
        self.asked.append(verb)
        self.ends += [os.dup(fd) for fd in fds]

        if not self.answers:
            await asyncio.Event().wait()

        if self.refusal is not None:
            raise self.refusal

        return None, b""

    def close(self) -> None:
        for end in self.ends:
            os.close(end)


def test_connections_without_end_break_the_wire():
    """What init has open at once is known; beyond that, and beyond what is turned away, it lies."""

    async def work() -> None:
        init = Init()
        init.answers = False
        egress = LiveEgress("box", init.ask, init.breaches.append)

        for number in range(10_000):
            egress.note_open(number)
            await asyncio.sleep(0)

            if init.breaches:
                break

        assert init.breaches[0].code == "order"
        assert number < 1000
        # Of those that wait to be served, no more than so many hold a descriptor.
        assert init.asked.count("carry_egress") <= 64
        assert len(init.ends) <= 64
        egress.close()
        await asyncio.sleep(0)
        init.close()

    asyncio.run(work())


def test_all_sandboxes_together_leave_files_for_the_others(monkeypatch):
    """One that comes on top is turned away, and not by the lack of a descriptor somewhere else."""

    async def work() -> None:
        init = Init()
        init.answers = False
        boxes = [LiveEgress(f"box{number}", init.ask, init.breaches.append) for number in range(3)]
        monkeypatch.setattr("resource.getrlimit", lambda _: (8 * 10, 8 * 10))

        for number in range(30):
            boxes[number % 3].note_open(number)

        while len(init.asked) < 30:
            await asyncio.sleep(0)

        assert init.asked.count("carry_egress") == 10
        assert init.asked.count("drop_egress") == 20

        for box in boxes:
            box.close()

        await asyncio.sleep(0.01)
        assert LiveEgress._all_carried == 0
        init.close()

    asyncio.run(work())


def open_files() -> set[str]:
    """What this process has open; others come and go meanwhile."""
    found = set()

    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))

    return found


@pytest.mark.parametrize("refusal", [InitError("os", "no such", 2), InitGoneError()])
def test_what_init_does_not_know_costs_nothing(refusal):
    """A connection that has gone meanwhile, and a sandbox that has: no descriptor is left, nothing is reported."""

    async def work() -> None:
        init = Init(refusal)
        egress = LiveEgress("box", init.ask, init.breaches.append)
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

        for number in range(50):
            egress.note_open(number)

        while len(init.asked) < 50:
            await asyncio.sleep(0)

        await asyncio.sleep(0)
        given = [os.readlink(f"/proc/self/fd/{end}") for end in init.ends]
        assert len(given) == 50
        # The host's ends are closed, and it holds no other name of those that it gave away.
        assert {os.read(end, 1) for end in init.ends} == {b""}
        init.close()
        assert not set(given) & open_files()
        assert (init.breaches, reported) == ([], [])

    asyncio.run(work())


def test_the_layer_says_what_way_there_is():
    """A sandbox without network is described as before."""

    async def work() -> None:
        from fumehood.egress.route import prepare_route

        init = Init()
        egress = LiveEgress("box", init.ask, init.breaches.append)
        isolation = Isolation(
            level="namespaces", layers=(Layer(name="network", state="on", why="a loopback"),)
        )
        assert egress.describe(isolation) == isolation
        egress.use(await prepare_route(Network(internet=True)))
        assert egress.describe(isolation).layers[0].why.endswith("the only way out: internet")
        assert egress.describe(isolation).level == "namespaces"

    asyncio.run(work())
