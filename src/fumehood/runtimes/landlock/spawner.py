"""Makes guests of one template without namespaces, by requests to its zygote.

The zygote forks a reaper for each sandbox; its messages are checked, because its packages are not ours.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fumehood.errors import SandboxStartError
from fumehood.runtimes.base import ContextLaunch
from fumehood.runtimes.landlock.guest import LandlockGuest, LandlockGuestSpawner
from fumehood.runtimes.landlock.isolation import describe_fence
from fumehood.runtimes.launcher_client import KeptSpawner, cgroup_fault
from fumehood.runtimes.linux.control_groups import CGROUP_PREFIX, remove_later, remove_now
from fumehood.runtimes.packets import PacketSocket
from fumehood.runtimes.preload_reports import PreloadReport, ZygoteEndedError
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation
from fumehood_jail import cgroups, users
from fumehood_jail.errors import JailError

_GREETING_SECONDS = 30.0
# In addition to the guest's processes: the reaper and init.
_OWN_PROCESSES = 2
_FIXED_LIMITS = frozenset({"disk_bytes", "inodes", "open_files", "processes", "cpu_cores"})
# Messages beside those about imports: that it is ready.
_ANSWERS_WHEN_READY = 1
# That it has failed, and that it has ended.
_ANSWERS_FOR_A_SANDBOX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFolders:
    """The folders of a template's sandboxes on the host.

    Attributes:
        rooms: The folder that holds the private folder of each sandbox.
        readable: Further paths that the sandboxes may read.
        files: The folder of which each sandbox gets a copy.
        ids: The user and group id of the sandboxes; None: those of the host process.
        cgroup: The place where cgroups are made, or None and the reason.
        envs: Environment variables of every process in the sandboxes.
    """

    rooms: str
    readable: list[str]
    files: str | None
    ids: users.IdPlan | None
    cgroup: tuple[cgroups.CgroupDriver | None, str]
    envs: dict[str, str]


class LandlockSpawner(KeptSpawner[LandlockGuest], LandlockGuestSpawner):
    """Makes guests from one zygote."""

    def __init__(
        self, zygote: socket.socket, launcher: subprocess.Popen[bytes], place: SandboxFolders
    ) -> None:
        super().__init__(launcher)
        self.guest_envs = place.envs
        self.host_pidfd = os.pidfd_open(os.getpid())
        self._place = place
        self._driver, self._cgroup_reason = place.cgroup
        self.fixed_limits = _FIXED_LIMITS | (frozenset() if self._driver else {"memory_bytes"})
        self._zygote = PacketSocket(zygote, self._zygote_says, self._zygote_ended)
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_given_back = False

    async def begin(self, program: bytes, preload: tuple[str, ...]) -> None:
        """Sends the zygote its configuration, and waits until everything is imported."""
        self._preload = PreloadReport(preload)
        orders = {"type": "configure", "seccomp": program.hex(), "preload": list(preload)}
        self._zygote.send(orders, answers=len(preload) + _ANSWERS_WHEN_READY)
        await self._until_ready()

    async def spawn(
        self, sandbox_id: str, limits: Limits, first: Callable[[], ContextLaunch]
    ) -> LandlockGuest:
        if self.ended.done():
            raise SandboxStartError(step="ask the zygote", reason="the template's processes have ended")

        number = self.next_number()
        # Sandboxes cannot list the parent folder, so none can find the folder of another.
        folder = os.path.join(self._place.rooms, secrets.token_hex(16))
        guest = LandlockGuest(self, number, folder, limits)
        self._guests[number] = guest
        try:
            with guest.guest_fds(self._make_cgroup(sandbox_id, limits)) as fds:
                order = {"type": "spawn", "sandbox": number, "options": self._options(folder, limits)}
                self._zygote.send(order, fds, answers=_ANSWERS_FOR_A_SANDBOX)
        except BaseException:
            guest.abandon()
            self._guest_ended(number)
            raise

        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                await guest.greeted()

            guest.first_context = guest.start_context(first())
        except TimeoutError:
            guest.abandon()
            raise SandboxStartError(
                step="greeting", reason=f"init sent nothing for {_GREETING_SECONDS:g} s"
            ) from None
        except BaseException:
            guest.abandon()
            raise

        return guest

    async def aclose(self) -> None:
        """Ends the template's processes; the launcher ends when none of them is left."""
        for guest in list(self._guests.values()):
            guest.kill()

        await self._end_processes()
        self._all_ended()

        await self._wait_for_others(self._tasks)

        if not self._is_given_back:
            self._is_given_back = True
            os.close(self.host_pidfd)

            if self._place.ids is not None:
                self._place.ids.release()

    # -- requests of guests

    def next_number(self) -> int:
        return next(self._numbers)

    def remove_cgroup(self, cgroup: cgroups.Cgroup) -> None:
        if not remove_now(self._driver, cgroup):
            self._begin(remove_later(self._driver, cgroup))

    def describe(self, greeting: dict[str, Any]) -> Isolation:
        return describe_fence(
            greeting,
            has_own_user=self._place.ids is not None,
            driver=self._driver,
            cgroup_reason=self._cgroup_reason,
        )

    # -- inside

    @property
    def _sockets(self) -> tuple[PacketSocket, ...]:
        return (self._zygote,)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_cgroup(self, sandbox_id: str, limits: Limits) -> cgroups.Cgroup | None:
        if self._driver is None:
            return None

        try:
            return self._driver.create(
                cgroups.cgroup_name(CGROUP_PREFIX, sandbox_id),
                memory_bytes=limits.memory_bytes,
                processes=limits.processes + _OWN_PROCESSES,
                cpu_cores=limits.cpu_cores or float(os.cpu_count() or 1),
            )
        except JailError as error:
            raise cgroup_fault(error) from None

    def _options(self, folder: str, limits: Limits) -> dict[str, Any]:
        return {
            "folder": folder,
            "readable": self._place.readable,
            "files": self._place.files,
            "path": self._place.envs["PATH"],
            "processes": limits.processes,
            "watch_memory_bytes": None if self._driver else limits.memory_bytes,
            "rlimits": {
                "nofile": limits.open_files,
                "fsize": limits.disk_bytes,
                "memlock": 64 * 1024,
                "msgqueue": 64 * 1024,
                "sigpending": 1024,
                "nice": 0,
                "rtprio": 0,
            },
        }

    def _zygote_says(self, message: dict[str, Any]) -> None:
        kind = message["type"]

        if kind in ("importing", "ready"):
            self._note_preloading(message)
            return

        number = int(message["sandbox"])

        if kind == "failed" and number in self._guests:
            self._guests[number].failed("fork", str(message["detail"]))

        self._guest_ended(number)

    def _guest_ended(self, number: int) -> None:
        guest = self._guests.pop(number, None)

        if guest is None:
            return

        try:
            # The reaper has emptied the folder, but may not reach its parent.
            os.rmdir(guest.folder)
        except FileNotFoundError:
            pass  # it was never made
        except OSError:
            self._begin(asyncio.to_thread(_remove_room, guest.folder))

        # Its reaper has ended; a failure of its clean-up must not block the other guests.
        guest.kill()
        self._let_go(guest)

    def _zygote_ended(self) -> None:
        self._zygote.close()
        self._all_ended()
        self._begin(self.aclose())

        if not self._ready.done():
            self._ready.set_exception(ZygoteEndedError())

    def _all_ended(self) -> None:
        for number in list(self._guests):
            self._guest_ended(number)

        if not self.ended.done():
            self.ended.set_result(None)


def _remove_room(folder: str) -> None:
    """Removes a folder with a program that follows no links; the launcher removes what this cannot."""
    subprocess.run(
        ["rm", "-rf", folder],
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
