"""Runs the parts of a machine: starts them in order, restarts each that ends, and on a signal ends all in reverse.

Runs in the node agent. The sandboxes end with the host daemon alone: Ray and the server may crash and be restarted
beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fumehood.cancellation import cancel_and_wait
from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.log.setup import configure
from fumehood.node_agent.plan import Part, Plan, host_part, ray_part, server_part
from fumehood.server.state_files import locked, own_folder

_LONGEST_PAUSE_SECONDS = 15.0
# A part that has run for this time has not failed at its start: it is restarted at once.
_STEADY_SECONDS = 60.0
_LOOK_SECONDS = 0.1
STATUS_FILE = "status.json"
LOCK_FILE = "node_agent.lock"


def run_node_agent(plan: Plan, environ: Mapping[str, str]) -> int:
    """Runs the parts of a machine until SIGTERM or SIGINT, and returns the exit code.

    Args:
        plan: The parts to run.
        environ: The environment of the parts.

    Raises:
        InvalidArgumentError: Another node agent runs with this folder.
    """
    configure("info", "console")
    taken = InvalidArgumentError(
        field="--state-folder",
        value=plan.state,
        allowed="one that no node agent uses: `fumehood cluster leave` ends it",
    )

    with locked(plan.folder / LOCK_FILE, taken):
        asyncio.run(_NodeAgent(plan, environ).run())

    return 0


class _NodeAgent:
    """Runs the parts of one machine.

    Args:
        plan: The parts to run.
        environ: The environment of the parts.
    """

    def __init__(self, plan: Plan, environ: Mapping[str, str]) -> None:
        self._plan = plan
        self._environ = environ
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._states: dict[str, dict[str, object]] = {}
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Runs the parts until a signal, then ends them."""
        loop = asyncio.get_running_loop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)

        self._note("node_agent", state="running", pid=os.getpid())
        parts: list[tuple[str, Callable[[Plan], Part]]] = []

        if self._plan.has_host:
            parts.append(("host", host_part))

        parts.append(("ray", ray_part))

        if self._plan.server_address:
            parts.append(("server", server_part))

        started = {name: asyncio.Event() for name, _ in parts}
        tasks = []
        before: asyncio.Event | None = None

        for name, make in parts:
            tasks.append(asyncio.create_task(self._keep(make, before, started[name])))
            before = started[name]

        ending = asyncio.create_task(self._ended.wait())
        # A part that cannot even be started ends the others: it is no part that has ended, which is started again.
        await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(ending, *tasks)

        for name, make in reversed(parts):
            if (process := self._running.pop(name, None)) is not None:
                await _end(process, make(self._plan).stop_seconds)

        (self._plan.folder / STATUS_FILE).unlink()

        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _keep(
        self, make: Callable[[Plan], Part], before: asyncio.Event | None, started: asyncio.Event
    ) -> None:
        if before is not None:
            await before.wait()

        loop = asyncio.get_running_loop()
        pause, restarts = 1.0, 0

        while True:
            part, began = make(self._plan), loop.time()
            process = await self._start(part)
            self._note(part.name, state="starting", pid=process.pid, restarts=restarts)
            noticing = asyncio.create_task(self._notice_start(part, process, restarts, started))
            code = await process.wait()
            noticing.cancel()
            _kill_group(process)
            del self._running[part.name]
            events.PART_ENDED.log(part=part.name, exit_code=code)
            self._note(part.name, state="ended", exit_code=code, restarts=restarts)
            restarts += 1
            pause = 1.0 if loop.time() - began > _STEADY_SECONDS else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _start(self, part: Part) -> asyncio.subprocess.Process:
        if part.private is not None:
            _make_private(part.private)

        if part.stale is not None:
            part.stale.unlink(missing_ok=True)

        with open(self._plan.folder / f"{part.name}.log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *part.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environ, **part.envs},
                # A group of its own, so that all that it has started can be ended with it.
                start_new_session=True,
            )

        self._running[part.name] = process
        events.PART_STARTED.log(part=part.name, pid=process.pid)
        return process

    async def _notice_start(
        self, part: Part, process: asyncio.subprocess.Process, restarts: int, started: asyncio.Event
    ) -> None:
        while not (all(sign.exists() for sign in part.signs) and await _accepts(part.address)):
            await asyncio.sleep(_LOOK_SECONDS)

        self._note(part.name, state="running", pid=process.pid, restarts=restarts)
        started.set()

    def _note(self, name: str, **state: object) -> None:
        self._states[name] = state
        draft = self._plan.folder / f"{STATUS_FILE}.new"
        draft.write_text(json.dumps(self._states), encoding="utf-8")
        draft.replace(self._plan.folder / STATUS_FILE)


def _make_private(folder: Path) -> None:
    """Makes a folder that no other user may enter.

    Raises:
        InvalidArgumentError: The folder belongs to another user, or is a link, whose owner could redirect it later.
    """
    own_folder("--state-folder", folder)

    if folder.is_symlink():
        raise InvalidArgumentError(
            field="--state-folder",
            value=str(folder),
            allowed="a folder of this user in place of that link: remove it",
        )


async def _accepts(address: str) -> bool:
    """Whether a server accepts connections, where one is expected."""
    if not address:
        return True

    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        return False

    writer.close()
    return True


async def _end(process: asyncio.subprocess.Process, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()

    _kill_group(process)
    await process.wait()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills the remaining processes of a part's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def node_agent_pid(folder: Path) -> int | None:
    """Returns the pid of the node agent of this folder; None if there is none."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None

    try:
        # A node agent holds the lock to its end, so that the number cannot be another process's.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return int(read_status(folder)["node_agent"]["pid"])
    finally:
        os.close(fd)


def read_status(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the last status of each part, as recorded by the node agent; empty if there is none yet."""
    try:
        status: dict[str, dict[str, Any]] = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}

    return status
