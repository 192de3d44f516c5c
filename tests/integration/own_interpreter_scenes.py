"""What the children of the tests of own interpreters do: each function is one host process, so that it can be counted.

Run by `launching.py`; returns plain values.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import census

from fumehood import FumehoodError, Sandbox, Template, failpoints
from fumehood.assemble import make_backend
from fumehood.engine.sandbox import SandboxLaunch
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal, shared_portal
from fumehood.runtimes import launch
from fumehood.runtimes.landlock.runtime import LandlockRuntime
from fumehood.runtimes.namespaces.runtime import LinuxRuntime
from fumehood.runtimes.own_interpreters import start_template
from fumehood.runtimes.packets import until_readable
from fumehood.values.limits import Limits
from fumehood.values.sandbox import IsolationLevel

os.environ["FUMEHOOD_POOL_SIZE"] = "0"
OWN = Template(name="own", preload=(), own_interpreter=True)
_RUNTIMES = {"namespaces": LinuxRuntime, "landlock-only": LandlockRuntime}
# More than a start that is given up has until it is given up once more.
_LATE_TURNS = 50
_MARKS = "hash('fumehood'), id(None)"


def _open_resources() -> dict[str, int]:
    return census.open_resources(shared_portal().loop)


def _parts(kind: str) -> set[int]:
    return set(census.parts_of(os.getpid())[kind])


def ends_and_deaths() -> dict[str, Any]:
    """Ends sandboxes in every way beside one that lives on."""
    with Sandbox(OWN) as survivor:
        before = _open_resources()
        mounts = census.mounts()
        told: dict[str, Any] = {"killed": _killed(before), "forked": _forked(before)}
        told["deaths"] = {part: _death(part, before) for part in ("launcher", "jail_init", "zygote", "init")}
        told["survivor"] = survivor.run_code("6 * 7").text
        told["mounts"] = census.mounts() == mounts

    told["last"] = len(census.descendants_of(os.getpid()))
    return told


def _killed(before: dict[str, int]) -> list[Any]:
    sandbox = Sandbox(OWN)
    lived = len(_parts("launcher"))
    sandbox.kill()
    # Not a moment later: whoever has waited for the end finds nothing.
    return [lived, len(_parts("launcher")), census.excess(_open_resources, before)]


def _forked(before: dict[str, int]) -> list[Any]:
    parent = Sandbox(OWN)
    fork = parent.fork()
    parent.kill()
    grandchild = fork.fork()
    fork.kill()
    text = grandchild.run_code("6 * 7").text
    grandchild.kill()
    return [text, census.excess(_open_resources, before)]


def _death(part: str, before: dict[str, int]) -> list[Any]:
    known = _parts(part)
    victim = Sandbox(OWN)
    (pid,) = _parts(part) - known
    os.kill(pid, signal.SIGKILL)
    outcome = "it lives"

    try:
        victim.run_code("import time\ntime.sleep(60)")
    except FumehoodError as error:
        outcome = type(error).__name__

    victim.kill()
    return [outcome, victim.is_running(), census.excess(_open_resources, before)]


def pool() -> dict[str, Any]:
    """Keeps two ready, takes them, and ends the engine while the pool is being filled again."""
    # Whose loop has descriptors of its own.
    shared_portal()
    descriptors = len(os.listdir("/proc/self/fd"))
    portal = Portal()
    backend = make_backend(EngineSettings(pool_size=2), portal)
    first = Sandbox(OWN, backend=backend)
    asyncio.run_coroutine_threadsafe(backend.wait_warm("own"), portal.loop).result()
    warm = _parts("zygote")
    taken = [first, *(Sandbox(OWN, backend=backend) for _ in range(2))]
    marks = {sandbox.run_code(_MARKS).text for sandbox in taken}
    kept = warm <= _parts("zygote")
    asyncio.run_coroutine_threadsafe(backend.aclose(), portal.loop).result()

    for sandbox in taken:
        sandbox.kill()

    # It waits for its threads: one may be looking at the interpreter that was to be started next.
    portal.close()
    left = len(census.descendants_of(os.getpid()))
    more = len(os.listdir("/proc/self/fd")) - descriptors
    return {"warm": len(warm), "marks": len(marks), "kept": kept, "left": left, "descriptors": more}


def unused() -> dict[str, Any]:
    """Lets the interpreter that is started with the template die before anybody needs it, and then everything end."""

    async def main() -> dict[str, Any]:
        spawner = await start_template(LinuxRuntime(), OWN)
        first = _parts("zygote")

        for launcher in _parts("launcher"):
            os.kill(launcher, signal.SIGKILL)

        while first & _parts("zygote") or census.descendants_of(os.getpid()):
            await asyncio.sleep(0)

        launching = SandboxLaunch("abcdef-abcdef-abcdefabcdefabcdefabcdef", Limits(), spawner.guest_envs)
        guest = await spawner.spawn(launching.sandbox_id, launching.limits, launching.first_context)
        second = _parts("zygote")
        starting = asyncio.ensure_future(spawner.spawn("never", Limits(), launching.first_context))

        while not _parts("launcher") - _launchers_of(second):
            await asyncio.sleep(0)

        # Who waits for it gives up, and while that is tidied up everything ends.
        starting.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await spawner.aclose()
        (outcome,) = await asyncio.gather(starting, return_exceptions=True)
        launching.abandon()
        guest.socket.close()
        return {
            "anew": len(second - first),
            "given up": type(outcome).__name__,
            "ended": guest.ended.done(),
            "left": len(census.descendants_of(os.getpid())),
        }

    return asyncio.run(main())


def _launchers_of(zygotes: set[int]) -> set[int]:
    launchers = _parts("launcher")
    return {launcher for launcher in launchers if zygotes & set(census.descendants_of(launcher))}


def given_up() -> int:
    """Gives up a start while every thread is busy; returns how many descriptors are left."""

    class Busy(ThreadPoolExecutor):
        free = threading.Event()
        count = 0

        def submit(self, *call: Any, **named: Any) -> Any:
            self.count += 1

            # The first two look at the template, before there is anything to leave behind.
            if self.count == 3:
                super().submit(self.free.wait)

            return super().submit(*call, **named)

    async def main() -> int:
        threads = Busy(1)
        asyncio.get_running_loop().set_default_executor(threads)
        before = len(os.listdir("/proc/self/fd"))
        starting = asyncio.create_task(LinuxRuntime().start(OWN))

        while not _parts("launcher"):
            await asyncio.sleep(0)

        starting.cancel()
        await asyncio.wait([starting])
        threads.free.set()
        threads.shutdown()
        return len(os.listdir("/proc/self/fd")) - before

    return asyncio.run(main())


def given_up_at_the_last_moment() -> list[Any]:
    """Gives up a start when its zygote has just said that it is ready; returns what came of it, and what is left."""

    async def main() -> list[Any]:
        before = len(os.listdir("/proc/self/fd"))

        def watch(spawner: Any) -> None:
            spawner._ready.add_done_callback(lambda _: starting.cancel())

        with failpoints.arm("template.begin", watch):
            starting = asyncio.create_task(LinuxRuntime().start(OWN))
            (outcome,) = await asyncio.gather(starting, return_exceptions=True)

        left = len(census.descendants_of(os.getpid()))
        return [type(outcome).__name__, left, len(os.listdir("/proc/self/fd")) - before]

    return asyncio.run(main())


def given_up_again_and_again(level: IsolationLevel) -> list[Any]:
    """Gives up a start at each turn of the loop; returns what came of it, whether more than once, and what is left."""

    async def main() -> list[Any]:
        before = len(os.listdir("/proc/self/fd"))
        begun = asyncio.Event()
        _watch_late(begun.set)
        starting = asyncio.create_task(_RUNTIMES[level]().start(OWN))
        await begun.wait()
        times = 0

        while not starting.done():
            times += starting.cancel()
            await asyncio.sleep(0)

        left = len(census.descendants_of(os.getpid()))
        more = len(os.listdir("/proc/self/fd")) - before
        return [starting.cancelled(), times > 1, left, more]

    return asyncio.run(main())


def _watch_late(begin: Callable[[], None]) -> None:
    """Lets whoever waits for a launcher hear of it some turns of the loop later, as on a busy machine.

    Args:
        begin: Called when somebody waits: first for what a new launcher says of its launch.
    """

    async def watch_late(fd: int) -> None:
        begin()

        for _ in range(_LATE_TURNS):
            await asyncio.sleep(0)

        await until_readable(fd)

    launch.until_readable = watch_late


def closed_while_filling() -> dict[str, int]:
    """Ends the engine while an interpreter for the pool is being started; returns what is left."""
    # Whose loop has descriptors of its own.
    shared_portal()
    descriptors = len(os.listdir("/proc/self/fd"))
    portal = Portal()
    backend = make_backend(EngineSettings(pool_size=1), portal)

    with Sandbox(OWN, backend=backend):
        asyncio.run_coroutine_threadsafe(backend.wait_warm("own"), portal.loop).result()
        begun = threading.Event()
        _watch_late(begun.set)

        with Sandbox(OWN, backend=backend):
            begun.wait()
            asyncio.run_coroutine_threadsafe(backend.aclose(), portal.loop).result()

    left = len(census.descendants_of(os.getpid()))
    portal.close()
    return {"left": left, "descriptors": len(os.listdir("/proc/self/fd")) - descriptors}


def other_level(level: IsolationLevel) -> dict[str, Any]:
    """Two beside each other by a weaker way, of which one ends."""
    with Sandbox(OWN, isolation=level) as one, Sandbox(OWN, isolation=level) as other:
        reached = [sandbox.get_info().isolation.level for sandbox in (one, other)]
        marks = len({sandbox.run_code(_MARKS).text for sandbox in (one, other)})
        before = len(census.descendants_of(os.getpid()))
        one.kill()
        after = len(census.descendants_of(os.getpid()))
        text = other.run_code("6 * 7").text

    left = len(census.descendants_of(os.getpid()))
    return {"levels": reached, "marks": marks, "half": after * 2 == before, "text": text, "left": left}


def used_up_ids() -> dict[str, Any]:
    """As many as there are blocks of ids, one more, and one when there is room again."""
    made = [Sandbox(OWN) for _ in range(2)]

    try:
        Sandbox(OWN)
        refused = ["made"]
    except FumehoodError as error:
        refused = [type(error).__name__, str(error)]

    before = _open_resources()
    made.pop().kill()
    made.append(Sandbox(OWN))
    texts = [sandbox.run_code("6 * 7").text for sandbox in made]
    excess = census.excess(_open_resources, before)

    for sandbox in made:
        sandbox.kill()

    return {"refused": refused, "texts": texts, "excess": excess}
