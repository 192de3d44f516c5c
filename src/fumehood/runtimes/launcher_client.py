"""The launcher of a template's processes, seen from the host: the guests that it keeps, and the end of the processes.

Runs in the host process, on the engine's loop; shared by the Linux runtimes. A launcher ends only after all the
processes that it started, so its end means that every process of the template has ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from fumehood.errors import SandboxStartError
from fumehood.runtimes.base import Spawner
from fumehood.runtimes.linux.usage import Holder, Uncharged
from fumehood.runtimes.packets import PacketSocket, until_readable
from fumehood.runtimes.preload_reports import PreloadReport
from fumehood_jail.errors import JailError


def cgroup_fault(error: JailError) -> SandboxStartError:
    """Returns the error for a control group that could not be made although the driver works."""
    return SandboxStartError(
        step="make its control group", reason=str(error).partition("\n")[0], hint=error.hint
    )


_CLOSE_SECONDS = 10.0


class NotifiedGuest(Holder, Protocol):
    """A guest that is called at its end, to release the host's resources for it."""

    def note_end(self) -> None:
        """Called when its last process has ended."""


_Guest = TypeVar("_Guest", bound=NotifiedGuest)
_T = TypeVar("_T")


class KeptSpawner(Spawner, Generic[_Guest]):
    """Makes guests by processes that a launcher keeps.

    Args:
        launcher: The launcher's process.
    """

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._launcher = launcher
        # Keyed by numbers that carry no information: clones inherit whatever the template's processes have read.
        self._guests: dict[int, _Guest] = {}
        self._uncharged = Uncharged(self._guests)
        self._cleanup: asyncio.Task[None] | None = None
        self._ends_with_guests = False
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._preload = PreloadReport(())

    @property
    def importing(self) -> str:
        """The module whose import the zygote has begun last."""
        return self._preload.importing

    async def _until_ready(self) -> None:
        """Waits until everything is imported.

        Raises:
            UnfitModulesError: Modules cannot be preloaded; a start without them may succeed.
            SandboxStartError: The started processes cannot make sandboxes.
        """
        await self._ready
        self.left_out = self._preload.missing

    def _note_preloading(self, message: dict[str, Any]) -> None:
        """Handles the zygote's messages before and when it is ready; ignores them afterwards."""
        if self._ready.done():
            return

        if message["type"] == "importing":
            self._preload.note_importing(message)
            return

        fault = self._preload.fault(message)

        if fault is None:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(fault)

    @property
    @abstractmethod
    def _sockets(self) -> tuple[PacketSocket, ...]:
        """The sockets to the template's processes, which exit when these are closed."""

    def end_with_guests(self) -> None:
        self._ends_with_guests = True

        if not self._guests and not self._is_closed:
            self._close_sockets()
            self._cleanup = asyncio.get_running_loop().create_task(self.aclose())

    def _let_go(self, guest: _Guest) -> None:
        """Handles the end of a guest that has been removed from the list."""
        if not self._ends_with_guests or self._guests or self._is_closed:
            guest.note_end()
            return

        self._close_sockets()
        self._cleanup = asyncio.get_running_loop().create_task(self._end_with(guest))

    async def _end_with(self, last: _Guest) -> None:
        """Ends the template's processes first, and only then their last guest."""
        await self._end_processes()
        last.note_end()
        await self.aclose()

    async def _end_processes(self) -> None:
        self._close_sockets()
        await until_ended(self._launcher)

    async def _wait_for_others(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Waits for the other tasks that take part in the shutdown."""
        others = {*tasks, *([self._cleanup] if self._cleanup else [])} - {asyncio.current_task()}

        if others:
            await asyncio.wait(others)

    @property
    def _is_closed(self) -> bool:
        return all(sock.closed for sock in self._sockets)

    def _close_sockets(self) -> None:
        self._uncharged.close()

        for sock in self._sockets:
            sock.close()


async def wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Waits until a child process has ended, without a thread: none can be started at interpreter shutdown."""
    if process.poll() is not None:
        return

    pidfd = os.pidfd_open(process.pid)
    try:
        await until_readable(pidfd)
    finally:
        os.close(pidfd)

    process.wait()


async def until_ended(launcher: subprocess.Popen[bytes]) -> None:
    """Waits until a launcher has ended, after its client has closed the sockets; kills it after a time-out."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await wait_for_exit(launcher)
    except TimeoutError:
        # It is stopped, or hangs. Killing it also kills the processes that it keeps.
        launcher.kill()
        await wait_for_exit(launcher)
