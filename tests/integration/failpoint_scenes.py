"""What the children of the failpoint tests do: one host process that walks points, and has one thing go wrong at each.

Run by `launching.py`; returns plain values. A neighbour lives all the while, and must not notice.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import census

from fumehood import AsyncSandbox, FumehoodError, Limits, Template, failpoints
from fumehood.assemble import local_backend
from fumehood.portal import call, shared_portal

# Without packages: when its zygote is killed, the next one is there soon.
PLAIN = Template(name="plain", preload=())
LIMITS = Limits(grace_seconds=0.5)
# How long a point is held for a caller who has given up and is not let go before it goes on.
_HOLD_SECONDS = 0.1
STATE = "(globals().get('x'), open('f').read())"
PREPARE = "x = 1; _ = open('f', 'w').write('one')"
CHANGE = "x = 2; _ = open('f', 'w').write('two')"


class Fault:
    """One thing that goes wrong at one point, once.

    Args:
        kind: The name of an error, `hold`, `give up`, or the part that is killed.
        spared: Processes that live on.
    """

    def __init__(self, kind: str, spared: set[int]) -> None:
        self.kind = kind
        self.spared = spared
        self.hits = 0
        self.victims: list[int] = []
        self._caller: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._go_on: asyncio.Event | None = None
        self.reached = asyncio.Event()

    def __call__(self, _subject: object) -> Awaitable[None] | None:
        """Runs on the engine's loop."""
        self.hits += 1

        if self.hits > 1:
            return None

        match self.kind:
            case "EMFILE" | "EIO":
                number = getattr(errno, self.kind)
                raise OSError(number, os.strerror(number))
            case "hold" | "give up":
                self._go_on = asyncio.Event()
                self._loop.call_soon_threadsafe(self.reached.set)
                return self._held()

        self.victims = [pid for pid in census.parts_of(os.getpid())[self.kind] if pid not in self.spared]

        for pid in self.victims:
            # Some have been killed by what comes by here.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        return None

    async def _held(self) -> None:
        assert self._go_on is not None
        await self._go_on.wait()

    def let_go(self) -> None:
        """Lets whoever is held at the point go on."""
        if self._go_on is not None:
            shared_portal().loop.call_soon_threadsafe(self._go_on.set)


async def create(_: AsyncSandbox) -> object:
    """Makes another sandbox, and uses it."""
    async with AsyncSandbox(template=PLAIN, limits=LIMITS) as another:
        return (await another.run_code("6 * 7")).text


async def use_pool(_: AsyncSandbox) -> object:
    """Makes a sandbox, waits until the next one is ready, and takes that."""
    await create(_)
    await _warm()
    return await create(_)


async def start_template(_: AsyncSandbox) -> object:
    """Makes a sandbox of a template that nobody has used yet."""
    template = Template(name=f"plain {time.monotonic_ns()}", preload=())

    async with AsyncSandbox(template=template, limits=LIMITS) as another:
        return (await another.run_code("6 * 7")).text


async def run(sandbox: AsyncSandbox) -> object:
    """Runs code that leaves a trace."""
    execution = await sandbox.run_code("_ = open('ran', 'a').write('x'); 6 * 7")
    return execution.text or getattr(execution.error, "kind", None)


async def checkpoint(sandbox: AsyncSandbox) -> object:
    """Keeps the changed state."""
    await sandbox.run_code(CHANGE)
    await sandbox.checkpoint("new")
    return "made"


async def roll_back(sandbox: AsyncSandbox) -> object:
    """Goes back to what was there at first."""
    await sandbox.checkpoint("old")
    await sandbox.run_code(CHANGE)
    await sandbox.rollback("old")
    return (await sandbox.run_code(STATE)).text


async def fork(sandbox: AsyncSandbox) -> object:
    """Goes on in a second one."""
    child = await sandbox.fork()

    async with child:
        return (await child.run_code(STATE)).text


async def commit(sandbox: AsyncSandbox) -> object:
    """Changes everything, and keeps it."""
    execution = await sandbox.run_code(CHANGE, transactional=True)
    return execution.transaction and execution.transaction.outcome


async def undo(sandbox: AsyncSandbox) -> object:
    """Changes everything, and fails."""
    execution = await sandbox.run_code(f"{CHANGE}; 1 / 0", transactional=True)
    return execution.transaction and execution.transaction.outcome


async def pause(sandbox: AsyncSandbox) -> object:
    """Pauses, and lets it go on."""
    await sandbox.pause()
    await sandbox.resume()
    return (await sandbox.run_code("6 * 7")).text


async def kill(sandbox: AsyncSandbox) -> object:
    """Ends it."""
    return await sandbox.kill()


Verb = Callable[[AsyncSandbox], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "template": start_template,
    "create": create,
    "pool": use_pool,
    "run": run,
    "checkpoint": checkpoint,
    "rollback": roll_back,
    "fork": fork,
    "transaction": commit,
    "transaction.undo": undo,
    "pause": pause,
    "resume": pause,
    "delete": kill,
}


def verb_of(point: str) -> Verb:
    """What comes by a point."""
    return VERBS.get(point) or VERBS[point.partition(".")[0]]


def walk(steps: list[tuple[str, str]], pool_size: int) -> list[dict[str, Any]]:
    """Has one thing go wrong at one point, for each of the steps; tells what came of it."""
    os.environ["FUMEHOOD_POOL_SIZE"] = str(pool_size)
    return asyncio.run(_walk(steps))


async def _walk(steps: list[tuple[str, str]]) -> list[dict[str, Any]]:
    loop = shared_portal().loop
    complaints: list[str] = []
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context.get("exception"))))
    neighbour = await _neighbour()
    await create(neighbour)
    await _warm()
    before = census.open_resources(loop)
    told = []

    for kind, point in steps:
        spared = {pid for part in census.parts_of(os.getpid()).values() for pid in part}
        told.append(await _one(kind, point, spared))
        neighbour, answer = await _still_there(neighbour)
        await _warm()
        stays = verb_of(point) is start_template and told[-1]["outcome"].startswith("returned")
        excess = (
            {}
            if stays
            else await asyncio.to_thread(census.excess, lambda: census.open_resources(loop), before)
        )
        told[-1] |= {"neighbour": answer, "excess": excess, "complaints": complaints[:]}
        complaints.clear()

        if verb_of(point) is start_template:
            # Templates stay once they have been started.
            before = census.open_resources(loop)

    await neighbour.kill()
    return told


async def _warm() -> None:
    await asyncio.to_thread(call, local_backend().wait_warm, PLAIN.name)


async def _neighbour() -> AsyncSandbox:
    neighbour = await AsyncSandbox.create(template=PLAIN, limits=LIMITS)
    await neighbour.run_code("mine = 42")
    return neighbour


async def _still_there(neighbour: AsyncSandbox) -> tuple[AsyncSandbox, str | None]:
    try:
        return neighbour, (await neighbour.run_code("mine")).text
    except FumehoodError as error:
        await neighbour.kill()
        return await _neighbour(), type(error).__name__


async def _one(kind: str, point: str, spared: set[int]) -> dict[str, Any]:
    verb = verb_of(point)
    sandbox = await AsyncSandbox.create(template=PLAIN, limits=LIMITS)
    await sandbox.run_code(PREPARE)
    # Of a zygote or jail init there is one for all; those of a template that is just being started are its own.
    is_common = kind in ("zygote", "jail_init", "launcher") and verb is not start_template
    fault = Fault(kind, set() if is_common else spared)
    begun = time.monotonic()

    with failpoints.arm(point, fault):
        outcome, unknown = await _carried_out(verb, sandbox, fault)

    seconds = time.monotonic() - begun
    seen = {"point": point, "kind": kind, "hits": fault.hits, "outcome": outcome, "unknown": unknown}
    seen |= {"seconds": seconds, "after": await _look(sandbox), "victims": len(fault.victims)}
    await sandbox.kill()
    # Nobody is sent twice, and nobody is missed.
    seen["lives"] = await sandbox.is_running()
    seen["fresh"] = await create(sandbox)
    return seen


async def _carried_out(verb: Verb, sandbox: AsyncSandbox, fault: Fault) -> tuple[str, bool | None]:
    task = asyncio.ensure_future(verb(sandbox))
    reached = asyncio.ensure_future(fault.reached.wait())
    await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()

    if fault.kind == "give up":
        task.cancel()
        await asyncio.wait({task}, timeout=_HOLD_SECONDS)

    fault.let_go()
    try:
        return f"returned {await task}", None
    except asyncio.CancelledError:
        return "cancelled", None
    except FumehoodError as error:
        return type(error).__name__, error.outcome_unknown
    except Exception as error:
        return f"untyped {error!r}", None


async def _look(sandbox: AsyncSandbox) -> list[Any]:
    """What is left of the sandbox: its state, and whether the code of `run` has run."""
    try:
        look = await sandbox.run_code(STATE)

        if look.state_lost:
            look = await sandbox.run_code(STATE)

        ran = await sandbox.files.exists("ran")
    except FumehoodError as error:
        return [type(error).__name__, False]

    return [look.text, ran]
