"""Forwarded ports: one socket for each, whoever asks at the same time, and none that nobody knows of."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from functools import partial
from typing import Any

import pytest
from tests.unit.apart import apart, elsewhere  # noqa: F401 - a fixture

from fumehood.engine.init_client import InitError
from fumehood.engine.ports import LivePorts
from fumehood.errors import PortClosedError, SandboxClosedError

PORT = 8000


class Box:
    """Plays a sandbox in which nobody listens, and that can end."""

    def __init__(self) -> None:
        self.has_ended = False
        self.ports = LivePorts("box", self.ask, lambda: None, self.check_alive)
        self._before = self._opened()

    async def ask(self, *_: Any, **__: Any) -> tuple[Any, bytes]:
        raise InitError("os", "nobody listens", errno.ECONNREFUSED)

    def check_alive(self) -> None:
        if self.has_ended:
            raise SandboxClosedError(sandbox_id="box", reason="killed")

    def end(self) -> None:
        self.has_ended = True
        self.ports.close(partial(SandboxClosedError, sandbox_id="box", reason="killed"))

    @property
    def sockets(self) -> int:
        """How many there are that were not there before."""
        return len(self._opened() - self._before)

    @staticmethod
    def _opened() -> set[str]:
        """The sockets of this process, by the kernel's number of each."""
        found = set()

        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(f"/proc/self/fd/{number}"))

        return {name for name in found if name.startswith("socket:")}


@pytest.mark.parametrize("at_once", [False, True])
@apart
def test_a_port_has_one_socket_however_many_ask(at_once):
    async def work() -> None:
        box = Box()

        if at_once:
            places = await asyncio.gather(*(box.ports.forward(PORT) for _ in range(5)))
        else:
            places = [await box.ports.forward(PORT) for _ in range(5)]

        assert len(set(places)) == 1
        assert box.sockets == 1
        box.end()
        assert box.sockets == 0

    asyncio.run(work())


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("how", ["given up", "ended"])
@apart
def test_what_is_asked_for_in_vain_leaves_no_socket(how, turns):
    """Whoever asks gives up, or the sandbox ends, in each of the turns that it takes."""

    async def work() -> None:
        box = Box()
        asked = asyncio.ensure_future(box.ports.forward(PORT))

        for _ in range(turns):
            await asyncio.sleep(0)

        was_made = asked.done()

        if how == "given up":
            asked.cancel()
        else:
            box.end()

        await asyncio.wait([asked])

        if was_made:
            assert asked.result().startswith("127.0.0.1:")
        elif how == "given up":
            assert asked.cancelled()
        else:
            assert isinstance(asked.exception(), SandboxClosedError)

        if how == "given up":
            # The next one finds it, or has its own.
            await box.ports.forward(PORT)
            assert box.sockets == 1
            box.end()

        assert box.sockets == 0

    asyncio.run(work())


@apart
def test_errors_name_the_sandbox_as_it_is_called_now():
    async def work() -> list[str]:
        box = Box()
        named = []

        for name in ("box", "another"):
            box.ports.rename(name)

            with pytest.raises(PortClosedError) as caught:
                await box.ports.open(PORT)

            named.append(caught.value.sandbox_id)

        assert box.sockets == 0
        return named

    assert asyncio.run(work()) == ["box", "another"]
