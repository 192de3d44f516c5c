"""X16: what a host keeps of sandboxes that have ended. What stays until some timer fires takes memory all the same."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from fumehood import AsyncSandbox, Template
from fumehood.engine.sandbox import LiveSandbox

# Without packages it is there sooner.
PLAIN = Template(name="plain", preload=())


async def _code(sandbox: AsyncSandbox) -> None:
    await sandbox.run_code("print(1)")
    await sandbox.run_code("import time\ntime.sleep(60)", timeout=0.05)


async def _commands(sandbox: AsyncSandbox) -> None:
    await sandbox.commands.run("true", timeout=60)
    await sandbox.commands.run("sleep 60", background=True, timeout=60)


async def _files(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("a", b"x")
    await sandbox.files.read("a")


async def _checkpoints(sandbox: AsyncSandbox) -> None:
    await sandbox.rollback(await sandbox.checkpoint())
    await sandbox.run_code("1 / 0", transactional=True)


async def _contexts(sandbox: AsyncSandbox) -> None:
    await sandbox.restart_code_context(await sandbox.create_code_context())
    await sandbox.run_code("import os; os._exit(1)")


async def _pauses(sandbox: AsyncSandbox) -> None:
    await sandbox.set_timeout(600)
    await sandbox.pause()


USES: list[Callable[[AsyncSandbox], Awaitable[None]]] = [
    _code,
    _commands,
    _files,
    _checkpoints,
    _contexts,
    _pauses,
]


def _dead() -> int:
    gc.collect()
    return sum(isinstance(thing, LiveSandbox) and not thing.alive for thing in gc.get_objects())


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__.strip("_"))
def test_x16_an_ended_sandbox_is_let_go(use: Callable[[AsyncSandbox], Awaitable[None]]) -> None:
    """However it was used: nothing holds on to it once it is gone."""

    async def main() -> int:
        before = _dead()

        for _ in range(3):
            async with AsyncSandbox(template=PLAIN, idle_timeout=600) as sandbox:
                await use(sandbox)

        deadline = asyncio.get_running_loop().time() + 10

        # Handles that are done with lie in the loop until it has run.
        while (left := _dead() - before) > 0 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0)

        return left

    assert asyncio.run(main()) <= 0
