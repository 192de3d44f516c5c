"""Contexts that are being created: bounded, known from their beginning, and ended when nobody wants them any more."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from fumehood.engine.clock import SandboxClock
from fumehood.engine.contexts import contexts
from fumehood.engine.contexts.contexts import LiveContexts
from fumehood.engine.contexts.process import ContextStartError
from fumehood.engine.loop_share import LoopShare
from fumehood.engine.records import Recorder
from fumehood.errors import ContextNotFoundError, InvalidArgumentError
from fumehood.runtimes.base import GuestContext
from fumehood.values.limits import Limits
from fumehood.values.requests import CreateContext, ListContexts
from fumehood_wire.frames import encode

BOUND = contexts._MAX_CONTEXTS


class Process(GuestContext):
    """Plays a context process: it says that it is ready when it is told to, and dies when it is killed."""

    def __init__(self, channel: int) -> None:
        self.exited = asyncio.get_running_loop().create_future()
        self._sock = socket.socket(fileno=os.dup(channel))

    def get_ready(self, pid: int) -> None:
        self._sock.sendall(encode({"type": "status", "state": "ready", "pid": pid}, b""))

    def kill(self) -> None:
        if not self.exited.done():
            self._sock.close()
            self.exited.set_result(-9)


class Box:
    """Plays a sandbox whose processes get ready when a test says so."""

    def __init__(self) -> None:
        self.clock = SandboxClock()
        self.limits = Limits()
        self.recorder = Recorder()
        self.share = LoopShare()
        self.processes: list[Process] = []
        self.found = asyncio.Event()
        self.found.set()
        # Nothing is run.
        self.meter = None
        self.contexts = LiveContexts(self, self.directory)

    async def directory(self, path: str | None) -> str:
        await self.found.wait()
        return path or "/home/user"

    def start_context(self, link: Any, _info: Any, _steps: Any) -> GuestContext:
        self.processes.append(Process(link.guest_fds()[0]))
        return self.processes[-1]

    async def kill_context(self, pid: int) -> None:
        self.processes[pid - 1].kill()

    def was_out_of_memory(self, _pid: int | None) -> bool:
        return False

    def broken(self, error: Exception) -> None:
        raise AssertionError("nobody breaks the wire") from error

    async def create(self) -> Any:
        return (await self.contexts.call(CreateContext()))[0]

    async def listed(self) -> list[str]:
        return [info.id for info in await self.contexts.call(ListContexts())]

    def get_ready(self) -> None:
        for number, process in enumerate(self.processes, 1):
            if not process.exited.done():
                process.get_ready(number)

    def close(self) -> None:
        for context in self.contexts:
            context.close()

        for process in self.processes:
            process.kill()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("waits_for", ["directory", "process"])
def test_those_that_are_created_at_once_are_bounded_together(waits_for):
    """However many ask before the first one is there."""

    async def work() -> None:
        box = Box()

        if waits_for == "directory":
            box.found.clear()

        creating = [asyncio.ensure_future(box.create()) for _ in range(BOUND + 8)]
        await _settle()
        box.found.set()
        await _settle()
        # The default one counts, and has no process yet.
        assert len(box.processes) == BOUND - 1
        box.get_ready()
        results = await asyncio.gather(*creating, return_exceptions=True)
        refused = [result for result in results if isinstance(result, Exception)]
        assert [type(error) for error in refused] == [InvalidArgumentError] * 9
        made = [result.id for result in results if not isinstance(result, Exception)]
        assert await box.listed() == ["default", *made]
        assert len(set(made)) == BOUND - 1
        box.close()

    asyncio.run(work())


@pytest.mark.parametrize("end", ["ready", "given up", "died"])
def test_one_that_is_being_created_is_somebodys(end):
    """It is listed from its beginning; of one that nobody waits for any more, or that has died, nothing is left."""

    async def work() -> None:
        box = Box()
        creating = asyncio.ensure_future(box.create())
        await _settle()
        (process,) = box.processes
        assert await box.listed() == ["default", "context-1"]

        if end == "ready":
            box.get_ready()
        elif end == "given up":
            creating.cancel()
        else:
            process.kill()

        results = await asyncio.gather(creating, return_exceptions=True)
        await _settle()
        lives = end == "ready"
        assert process.exited.done() is not lives
        assert await box.listed() == ["default", "context-1"][: 1 + lives]

        if not lives:
            expected = asyncio.CancelledError if end == "given up" else ContextStartError
            assert [type(result) for result in results] == [expected]

            with pytest.raises(ContextNotFoundError):
                box.contexts.existing("context-1")

            # And its place is free again: the next one has a name of its own.
            creating = asyncio.ensure_future(box.create())
            await _settle()
            box.get_ready()
            assert (await creating).id == "context-2"

        box.close()

    asyncio.run(work())
