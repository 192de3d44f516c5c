"""What the children of the fault tests do: each function is one host process that is disturbed, or disturbs itself.

Run by `launching.py`; returns plain values to the test, or waits to be ended by it.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import census

from fumehood import AsyncSandbox, FumehoodError, Sandbox
from fumehood.assemble import local_backend
from fumehood.portal import call, shared_portal

_PAYLOAD = b"x" * (24 << 20)
# Longer than any fault takes to be noticed.
_LONG = "import time\ntime.sleep(60)"


def _create(_: Sandbox) -> object:
    with Sandbox(envs={"NOT": "pooled"}) as another:
        return another.run_code("1").text


_ACTIVITIES: dict[str, Callable[[Sandbox], object]] = {
    "create": _create,
    "run_code": lambda sandbox: getattr(sandbox.run_code(_LONG).error, "name", None),
    "upload": lambda sandbox: sandbox.files.write("/mnt/data/up", _PAYLOAD).size_bytes,
    "download": lambda sandbox: len(sandbox.files.read("/mnt/data/big", format="bytes")),
    "command": lambda sandbox: sandbox.commands.run("sleep 60").exit_code,
    "new context": lambda sandbox: sandbox.create_code_context().language,
}


def killed_parts(victim: str, seed: int, rounds: int) -> dict[str, Any]:
    """Kills every process of one kind at a random moment of each activity, and goes on working."""
    dice = random.Random(seed)
    # A command does not depend on any context, and has a minute to go.
    activities = [name for name in _ACTIVITIES if (victim, name) != ("context", "command")]
    call(local_backend().wait_warm)
    loop = shared_portal().loop
    before = census.open_resources(loop)
    faults = [_one_fault(dice, victim, activity) for _ in range(rounds) for activity in activities]
    call(local_backend().wait_warm)
    return {"faults": faults, "excess": census.excess(lambda: census.open_resources(loop), before)}


def _one_fault(dice: random.Random, victim: str, activity: str) -> dict[str, Any]:
    sandbox = _survivor()
    sandbox.files.write("/mnt/data/big", _PAYLOAD)
    killed_at: list[float] = []
    timer = threading.Timer(dice.uniform(0, 0.03), _kill_all, (victim, killed_at))
    timer.start()

    try:
        outcome = repr(_ACTIVITIES[activity](sandbox))
    except FumehoodError as error:
        outcome = type(error).__name__

    timer.join()
    lasted = time.monotonic() - killed_at[0]
    begun = time.monotonic()
    running = sandbox.is_running()

    try:
        after = sandbox.run_code("6 * 7").text
    except FumehoodError as error:
        after = type(error).__name__

    sandbox.kill()

    with Sandbox() as another:
        fresh = another.run_code("6 * 7").text

    return {
        "activity": activity,
        "outcome": outcome,
        "seconds": lasted,
        "running": running,
        "after": after,
        "fresh": fresh,
        "fresh seconds": time.monotonic() - begun,
    }


def _kill_all(victim: str, killed_at: list[float]) -> None:
    # What is made while they are looked for lives on, as with any fault.
    pids = census.parts_of(os.getpid())[victim]
    killed_at.append(time.monotonic())

    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _survivor() -> Sandbox:
    """Returns a sandbox that the last fault has not hit: one of the pool may still be dying of it."""
    while True:
        sandbox = Sandbox()

        try:
            sandbox.commands.run("true")
            sandbox.run_code("1")
        except FumehoodError:
            sandbox.kill()
        else:
            return sandbox


def waiting_calls(victim: str) -> dict[str, list[Any]]:
    """Kills the parts of one kind while each verb that can wait is waiting; returns how and when each one ended."""
    return {name: _disturbed(name, victim) for name in _WAITING}


_SLEEP = ["sleep", "60"]
# What is prepared, and what then waits for a minute if nothing happens.
_WAITING: dict[str, tuple[Callable[[Sandbox], Any], Callable[[Sandbox, Any], object]]] = {
    "run_code": (lambda box: None, lambda box, _: box.run_code(_LONG)),
    "stream_code": (lambda box: None, lambda box, _: list(box.stream_code(_LONG))),
    "bash": (lambda box: None, lambda box, _: box.run_code("sleep 60", language="bash")),
    "commands.run": (lambda box: None, lambda box, _: box.commands.run(_SLEEP)),
    "wait": (lambda box: box.commands.run(_SLEEP, background=True), lambda _, handle: handle.wait()),
    "send_stdin": (
        lambda box: box.commands.run(_SLEEP, background=True, stdin=True),
        lambda _, handle: (handle.send_stdin(b"x" * (1 << 20)), handle.wait()),
    ),
    "pty.wait": (lambda box: box.pty.create(command=_SLEEP), lambda _, handle: handle.wait()),
    "pty.send": (
        lambda box: box.pty.create(command=_SLEEP),
        lambda _, handle: (handle.send(b"x" * (1 << 20)), handle.wait()),
    ),
    "watch": (lambda box: box.files.watch("/tmp"), lambda _, watch: list(watch)),
    "connect": (
        lambda box: box.commands.run(_SLEEP, background=True),
        lambda box, handle: box.commands.connect(handle.pid).wait(),
    ),
}


def _disturbed(name: str, victim: str) -> list[Any]:
    prepare, wait = _WAITING[name]
    killed_at: list[float] = []
    outcome: list[str] = []

    with _survivor() as sandbox:
        prepared = prepare(sandbox)
        # Long enough for the call to be waiting; were it too short, another moment of the call would be tested.
        timer = threading.Timer(0.05, _kill_all, (victim, killed_at))

        def work() -> None:
            try:
                outcome.append(f"returned {wait(sandbox, prepared)!r}")
            except FumehoodError as error:
                outcome.append(f"{type(error).__name__}: {getattr(error, 'reason', '')}")

        # A daemon: one that hangs must not keep this process from telling.
        worker = threading.Thread(target=work, daemon=True)
        timer.start()
        worker.start()
        timer.join()
        worker.join(10)

    return [*(outcome or ["hangs"]), time.monotonic() - killed_at[0]]


def busy_host() -> None:
    """Does everything at once in several sandboxes, and tells the test when it is under way; never returns."""
    sandboxes = [Sandbox() for _ in range(3)]
    detached = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)"

    for sandbox in sandboxes:
        sandbox.run_code(detached)
        sandbox.commands.run("nohup setsid sleep 600", background=True)
        sandbox.pty.create()

    def work(sandbox: Sandbox, activity: str) -> None:
        try:
            while True:
                _ACTIVITIES[activity](sandbox)
        except FumehoodError:
            return

    for sandbox, activity in zip(sandboxes, ("run_code", "upload", "create"), strict=True):
        threading.Thread(target=work, args=(sandbox, activity), daemon=True).start()

    # A signal that comes just before a wait for a lock goes unheard until the lock is free; this wait hears it.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)

    try:
        os.write(1, f"{os.getpid()}\n".encode())
        select.select([heard], [], [])
    except KeyboardInterrupt:
        # As a program does that was told to stop: it cleans up nothing, and ends.
        sys.exit(130)


def ends_with_living_sandboxes(how: str) -> None:
    """Ends itself without a word to its sandboxes, in one of the ways in which programs end."""
    sandboxes = [Sandbox() for _ in range(3)]
    sandboxes[0].commands.run("nohup setsid sleep 600", background=True)

    def run() -> None:
        try:
            sandboxes[1].run_code(_LONG)
        except FumehoodError:
            return

    threading.Thread(target=run, daemon=True).start()
    sandboxes[2].create_code_context()
    os.write(1, f"{os.getpid()}\n".encode())

    match how:
        case "return":
            return
        case "sys.exit":
            sys.exit(0)
        case "exception":
            raise ValueError("unhandled")
        case "os._exit":
            os._exit(0)
        case "abort":
            os.abort()


def one_call() -> str | None:
    """Starts an engine, and uses it once."""
    with Sandbox() as sandbox:
        return sandbox.run_code("6 * 7").text


def many_sandboxes(count: int) -> dict[str, Any]:
    """Creates and kills many sandboxes, used and unused, and counts what the host holds before and after."""
    loop = shared_portal().loop

    def use(number: int) -> None:
        with Sandbox(envs={"N": str(number)} if number % 5 == 0 else None) as sandbox:
            match number % 4:
                case 0:
                    sandbox.run_code("x = 1")
                case 1:
                    sandbox.files.write("a", b"x")
                case 2:
                    sandbox.commands.run("true")

    for number in range(20):
        use(number)

    call(local_backend().wait_warm)
    before = census.open_resources(loop)

    for number in range(count):
        use(number)

    call(local_backend().wait_warm)
    return {"excess": census.excess(lambda: census.open_resources(loop), before)}


def forks_with_living_sandboxes(method: str) -> dict[str, Any]:
    """Forks the user's process in several ways while a sandbox lives; returns what the parent sees after."""
    import multiprocessing

    with Sandbox() as sandbox:
        sandbox.run_code("x = 1")

        if method == "os.fork":
            pid = os.fork()

            if pid == 0:
                # Not os._exit: what is registered to run at exit runs in the child as well.
                sys.exit(0)

            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        elif method == "multiprocessing":
            context = multiprocessing.get_context("fork")

            with context.Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]

            child = context.Process(target=one_call)
            child.start()
            child.join()
            code = child.exitcode
        else:
            code = subprocess.run(
                [sys.executable, "-c", "pass"], preexec_fn=lambda: None, check=False
            ).returncode

        again = sandbox.run_code("x += 1; x").text
        alive = sandbox.is_running()

    return {"code": code, "text": again, "running": alive, "ended": not sandbox.is_running()}


def forked_child_outlives() -> None:
    """Forks a child that holds copies of every descriptor, and waits to be killed."""
    sandbox = Sandbox()
    sandbox.commands.run("sleep 600", background=True)

    if (child := os.fork()) == 0:
        os.close(1)
        os.close(2)
        signal.pause()

    os.write(1, f"{os.getpid()} {child}\n".encode())
    signal.pause()


def leaves_a_process() -> None:
    """Leaves a detached process behind, for the control of the tests themselves."""
    subprocess.Popen(["sleep", "0.3"], start_new_session=True, stdout=subprocess.DEVNULL)
    # Without a word of Python about it.
    sys.stderr.flush()
    os._exit(0)


def cancelled_calls(seed: int, count: int) -> dict[str, Any]:
    """Gives up calls at random moments, and counts what the host holds before and after."""
    dice = random.Random(seed)
    loop = shared_portal().loop
    call(local_backend().wait_warm)
    before = census.open_resources(loop)

    async def main() -> str | None:
        for number in range(count):
            try:
                # Every other one cannot come from the pool as it is.
                creation = AsyncSandbox.create(envs={"N": str(number)} if number % 2 else None)
                sandbox = await asyncio.wait_for(creation, dice.uniform(0, 0.03))
            except TimeoutError:
                continue

            await sandbox.kill()

        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("import time\nx = 0")

            for _ in range(count):
                try:
                    await asyncio.wait_for(sandbox.run_code("time.sleep(0.005)"), dice.uniform(0, 0.01))
                except TimeoutError:
                    # The interrupt that this has caused must not hit the next cell.
                    last = await sandbox.run_code("x + 42")

                    if last.text != "42":
                        return str(last.error)

                try:
                    await asyncio.wait_for(sandbox.files.write("a", b"x" * 100_000), dice.uniform(0, 0.002))
                    await asyncio.wait_for(sandbox.commands.run("true"), dice.uniform(0, 0.01))
                except TimeoutError:
                    continue

            last = await sandbox.run_code("x + 42")
            return last.text or str(last.error)

    text = asyncio.run(main())
    call(local_backend().wait_warm)
    # What was given up ends behind the caller's back.
    return {"text": text, "excess": census.excess(lambda: census.open_resources(loop), before)}
