"""Makes guests of one template by requests to its jail init and its zygote.

The jail init makes namespaces and init, the zygote forks contexts into them; both work on the same sandbox at the same
time. The zygote's messages are checked, because its packages are not ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fumehood import failpoints
from fumehood.errors import ForkDepthError, ForkError, IsolationUnavailableError, SandboxStartError, reason_of
from fumehood.runtimes.base import ContextLaunch
from fumehood.runtimes.launcher_client import KeptSpawner, cgroup_fault
from fumehood.runtimes.linux.control_groups import CGROUP_PREFIX, remove_later, remove_now
from fumehood.runtimes.namespaces.guest import LinuxContext, LinuxGuest, LinuxGuestSpawner
from fumehood.runtimes.namespaces.isolation import describe_isolation
from fumehood.runtimes.namespaces.plan import GuestIds
from fumehood.runtimes.namespaces.seccomp_notify import RefusedCalls, number_inside
from fumehood.runtimes.namespaces.template_group import TemplateGroup
from fumehood.runtimes.packets import PacketSocket
from fumehood.runtimes.preload_reports import PreloadReport, ZygoteEndedError
from fumehood.values.languages import PYTHON
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation
from fumehood_jail import cgroups, seccomp, users
from fumehood_jail.errors import JailError

_GREETING_SECONDS = 30.0
HOSTNAME = "fumehood"
# Each fork is nested in the namespaces of its parent; the kernel allows 32 levels.
MAX_GENERATION = 24
_FIXED_LIMITS = frozenset({"disk_bytes", "inodes", "open_files", "processes", "cpu_cores"})
# Messages beside those about imports: that the zygote is ready, and that the branch for other languages has ended.
_ANSWERS_WHEN_READY = 2
# That it has failed, and that it has ended.
_ANSWERS_FOR_A_SANDBOX = 2
# That it has failed or ended, and that the branches have ended that were grown for it.
_ANSWERS_FOR_A_CONTEXT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The compiled system call filters of sandboxes.

    Attributes:
        program: The filter of init and of all processes that it starts.
        notifying_program: The filter of contexts, which reports some of the refused calls to the host.
        notified_calls: The names of those calls, by number.
    """

    program: bytes
    notifying_program: bytes
    notified_calls: Mapping[int, str]

    @property
    def digest(self) -> str:
        """Identifies the filter of init, as `fumehood doctor` does."""
        return seccomp.policy_digest(self.program)


class LinuxSpawner(KeptSpawner[LinuxGuest], LinuxGuestSpawner):
    """Makes guests from one jail init and one zygote.

    Attributes:
        group: The control group of these two, which is removed at their end; None if they have no group of their own.
    """

    def __init__(
        self,
        *,
        jail_init: socket.socket,
        zygote: socket.socket,
        launcher: subprocess.Popen[bytes],
        ids: users.IdPlan,
        cgroup_place: tuple[cgroups.CgroupDriver | None, str],
        guest_envs: dict[str, str],
    ) -> None:
        super().__init__(launcher)
        self.group: TemplateGroup | None = None
        self.guest_envs = guest_envs
        self._jail_init = PacketSocket(jail_init, self._on_jail_init_message, self._base_jail_ended)
        self._zygote = PacketSocket(zygote, self._zygote_says, self._base_jail_ended)
        self._ids = ids
        self._slots = GuestIds(ids)
        # Where cgroups are made, or the reason why none are.
        self._driver, self._cgroup_reason = cgroup_place
        self._init_watches = self._driver is None
        # Mounts and resource limits are made once; the watcher inside gets its limit once.
        self.fixed_limits = _FIXED_LIMITS | ({"memory_bytes"} if self._init_watches else frozenset())
        self._contexts: dict[int, LinuxContext] = {}
        self._numbers = itertools.count(1)
        # One fork at a time: each raises the bounds of the namespaces above it.
        self._forking = asyncio.Lock()
        self._notified_calls: Mapping[int, str] = {}
        self.policy_digest = ""
        self._removals: set[asyncio.Task[None]] = set()

    async def begin(
        self, filters: Filters, preload: tuple[str, ...], *, runs_programs: bool, has_one_sandbox: bool
    ) -> None:
        """Sends jail init and zygote their configuration, and waits until everything is imported.

        Args:
            filters: The system call filters of contexts.
            preload: The modules to import.
            runs_programs: Whether the zygote may run programs of its root, to prepare languages.
            has_one_sandbox: Whether only one sandbox is made, so that preparations for many are not worth their time.
        """
        self._notified_calls = filters.notified_calls
        self.policy_digest = filters.digest
        plain = filters.program.hex()
        self._jail_init.send({"type": "configure", "seccomp": plain, "has_one_sandbox": has_one_sandbox})
        await failpoints.reach("template.begin", self)
        self._preload = PreloadReport(preload)
        orders = {
            "seccomp": filters.notifying_program.hex(),
            "seccomp_untold": plain,
            "preload": list(preload),
            "runs_programs": runs_programs,
            "has_one_sandbox": has_one_sandbox,
        }
        self._zygote.send({"type": "configure", **orders}, answers=len(preload) + _ANSWERS_WHEN_READY)
        await self._until_ready()

    async def spawn(self, sandbox_id: str, limits: Limits, first: Callable[[], ContextLaunch]) -> LinuxGuest:
        if self.ended.done():
            raise SandboxStartError(step="ask the jail init", reason="the template's processes have ended")

        slot = self._slots.take()
        number = next(self._numbers)
        guest = LinuxGuest(self, number, slot, limits)
        self._guests[number] = guest
        try:
            await failpoints.reach("create.spawn", guest)

            with guest.guest_fds() as fds:
                order: dict[str, Any] = {"type": "spawn", "sandbox": number, "slot": slot}
                spare = self._slots.spare([slot], is_within=False)
                order |= {"spare": spare, "options": self._options(limits)}
                self._jail_init.send(order, fds, answers=_ANSWERS_FOR_A_SANDBOX)
        except BaseException:
            # The jail init does not know it, and will never report its end.
            guest.abandon()
            self.note_end(number)
            raise

        try:
            await failpoints.reach("create.cgroup", guest)
            # The host's part is done while the jail init clones.
            guest.admit(self._make_cgroup(sandbox_id, limits))
            await failpoints.reach("create.admit", guest)
            launching = first()

            async with asyncio.timeout(_GREETING_SECONDS):
                await guest.started()
                await failpoints.reach("create.started", guest)
                guest.first_context = guest.start_context(launching)
                await failpoints.reach("create.context", guest)
                await guest.greeted()
                await failpoints.reach("create.greeted", guest)
        except TimeoutError:
            guest.abandon()
            raise SandboxStartError(
                step="greeting", reason=f"init sent nothing for {_GREETING_SECONDS:g} s"
            ) from None
        except BaseException:
            guest.abandon()
            raise

        return guest

    async def fork(self, parent: LinuxGuest, sandbox_id: str, limits: Limits) -> LinuxGuest:
        ancestors = (*parent.ancestors, parent)

        if len(ancestors) > MAX_GENERATION:
            raise ForkDepthError(generation=parent.generation, maximum=MAX_GENERATION)

        if self.ended.done() or parent.ended.done():
            raise ForkError(
                step="ask the jail init", reason="the sandbox that it would be nested in has ended"
            )

        slot = self._slots.take()
        number = next(self._numbers)
        guest = LinuxGuest(self, number, slot, limits, ancestors)
        self._guests[number] = guest
        parent.expect(guest)
        try:
            order = {
                "type": "spawn_within",
                "slot": self._slots.within(slot),
                "spare": self._slots.spare([slot, *(one.slot for one in ancestors)], is_within=True),
                "options": self._options(limits, is_fork=True),
            }

            async with self._forking, asyncio.timeout(_GREETING_SECONDS):
                with guest.guest_fds() as fds, parent.ancestor_fds() as held:
                    self._jail_init.send(order, [*fds, *held])

                guest.admit(self._make_cgroup(sandbox_id, limits))
                await guest.started()
                guest.watch()

            async with asyncio.timeout(_GREETING_SECONDS):
                await guest.greeted()
        except BaseException as error:
            guest.abandon()

            # The end of a guest that never started is not reported.
            if guest.pidfd < 0:
                self.note_end(number)

            if isinstance(error, (OSError, SandboxStartError, IsolationUnavailableError)):
                reason = str(error).partition("\n")[0] or "it said nothing for too long"
                raise ForkError(step="make the fork", reason=reason, logged=reason_of(error)) from None

            raise

        return guest

    async def aclose(self) -> None:
        """Ends the base jail; the kernel ends all processes in it."""
        # As the first process of its namespace the jail init ends only after all others in it have.
        await self._end_processes()
        self._all_ended()

        if self.group is not None:
            await self.group.remove()

        await self._wait_for_others(self._removals)
        self._ids.release()

    # -- requests of guests

    def remove_cgroup(self, cgroup: cgroups.Cgroup) -> None:
        if remove_now(self._driver, cgroup):
            return

        removal = asyncio.get_running_loop().create_task(remove_later(self._driver, cgroup))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def describe(self, greeting: dict[str, Any]) -> Isolation:
        return describe_isolation(greeting, self._ids, self._driver, self._cgroup_reason)

    def ask_to_kill(self, number: int) -> None:
        self._jail_init.send({"type": "kill", "sandbox": number})

    def ask_to_kill_held(self, pidfd: int) -> None:
        self._jail_init.send({"type": "kill_held"}, [pidfd])

    @property
    def has_migrators(self) -> bool:
        return self._slots.are_many and not self._init_watches

    def start_context(
        self, launching: ContextLaunch, limits: Limits, init_pidfd: int, fds: list[int], cgroup_fds: list[int]
    ) -> LinuxContext:
        number = next(self._numbers)
        # Which process forks it: contexts of other languages carry no packages of Python.
        branch = "" if launching.info.language == PYTHON.name else launching.info.language
        refused_calls = RefusedCalls(self._notified_calls, self._note_refused)
        context = LinuxContext(
            lambda: self._zygote.send({"type": "kill_context", "number": number}), refused_calls, branch
        )

        if self._zygote.closed or init_pidfd < 0:
            context.note_exit(1)
            return context

        self._contexts[number] = context
        context_fields = launching.as_message()
        try:
            with ExitStack() as own:
                file = _unread({"options": self._confinement(limits), "context": context_fields})
                own.callback(os.close, file)
                listener_socket = refused_calls.expect()
                own.callback(os.close, listener_socket)
                order: dict[str, Any] = {"type": "start_context", "number": number}

                if branch:
                    order["branch"] = branch

                sent = [file, init_pidfd, *fds, listener_socket, *cgroup_fds]
                self._zygote.send(order, sent, answers=_ANSWERS_FOR_A_CONTEXT)
        except BaseException:
            # The zygote does not know it, and will never report its end.
            self._contexts.pop(number, None)
            refused_calls.close()
            raise

        return context

    # -- inside

    @property
    def _sockets(self) -> tuple[PacketSocket, ...]:
        return self._jail_init, self._zygote

    def _make_cgroup(self, sandbox_id: str, limits: Limits) -> cgroups.Cgroup | None:
        if self._driver is None:
            return None

        try:
            return self._driver.create(
                cgroups.cgroup_name(CGROUP_PREFIX, sandbox_id),
                memory_bytes=limits.memory_bytes,
                processes=limits.processes + 1,
                cpu_cores=limits.cpu_cores or float(os.cpu_count() or 1),
            )
        except JailError as error:
            raise cgroup_fault(error) from None

    def _options(self, limits: Limits, *, is_fork: bool = False) -> dict[str, Any]:
        return {
            "is_fork": is_fork,
            "hostname": HOSTNAME,
            "disk_bytes": limits.disk_bytes,
            "inodes": limits.inodes,
            "memory_bytes": limits.memory_bytes,
            "cpu_cores": limits.cpu_cores,
            "watch_memory_bytes": limits.memory_bytes if self._init_watches else None,
            **self._confinement(limits),
        }

    def _confinement(self, limits: Limits) -> dict[str, Any]:
        """The options of `launch.confine`, for init and contexts."""
        return {
            "rlimits": _rlimits(limits, self._init_watches),
            "is_weighed": self._init_watches,
            "has_migrators": self.has_migrators,
        }

    def _note_refused(self, name: str, pid: int) -> None:
        """Finds the guest of a process whose call was refused: processes of a fork are under its parent's filter."""
        try:
            namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
            guest = next((one for one in self._guests.values() if one.holds(namespace)), None)
            inside = number_inside(pid)
        except OSError:
            return  # it has ended

        if guest is not None:
            guest.on_refused(name, inside)

    def _on_jail_init_message(self, message: dict[str, Any]) -> None:
        number = int(message["sandbox"])
        guest = self._guests.get(number)

        if guest is None:
            return

        if message["type"] == "failed":
            guest.failed("clone", str(message["detail"]))

        self.note_end(number)

    def _zygote_says(self, message: dict[str, Any]) -> None:
        kind = message["type"]

        if kind in ("importing", "ready"):
            self._note_preloading(message)
        elif kind == "context_exited":
            self._context_ended(int(message["number"]), int(message["status"]))
        elif kind == "context_failed":
            self._context_ended(int(message["number"]), 1)
        elif kind == "branch_ended":
            self._branch_ended(str(message["branch"]))

    def _branch_ended(self, branch: str) -> None:
        """Handles the end of a branch or of all: its contexts lose their parent, and end when their channels close."""
        for number, context in list(self._contexts.items()):
            if context.branch and branch in ("", context.branch):
                self._context_ended(number, -signal.SIGKILL)

    def _context_ended(self, number: int, status: int) -> None:
        context = self._contexts.pop(number, None)

        if context is not None:
            context.note_exit(status)

    def note_end(self, number: int) -> None:
        guest = self._guests.pop(number, None)

        if guest is None:
            return

        self._slots.give_back(guest.slot)

        if guest.pidfd >= 0:
            # The pidfd of a fork stays readable.
            asyncio.get_running_loop().remove_reader(guest.pidfd)

        self._let_go(guest)

    def _base_jail_ended(self) -> None:
        self._close_sockets()
        self._all_ended()
        # The launcher ends too: it has to be reaped, and its ids released.
        self._cleanup = asyncio.get_running_loop().create_task(self.aclose())

        if not self._ready.done():
            self._ready.set_exception(ZygoteEndedError())

    def _all_ended(self) -> None:
        for number in list(self._contexts):
            self._context_ended(number, -9)

        for number in list(self._guests):
            self.note_end(number)

        if not self.ended.done():
            self.ended.set_result(None)


def _unread(fields: dict[str, Any]) -> int:
    """Writes a context's options to a file that only the context itself reads: they hold secrets of its user.

    Data that the zygote has read would stay in its memory, of which every later context is a copy.
    """
    fd = os.memfd_create("fumehood-context")
    try:
        os.write(fd, json.dumps(fields).encode())
    except OSError:
        os.close(fd)
        raise

    return fd


def _rlimits(limits: Limits, init_watches: bool) -> dict[str, int]:
    """Resource limits: the second line behind control groups, and the first where there are none."""
    return {
        "nofile": limits.open_files,
        "memlock": 64 * 1024,
        "msgqueue": 64 * 1024,
        "sigpending": 1024,
        "nice": 0,
        "rtprio": 0,
        # In addition to the guest's processes: init, and its watcher's thread.
        "nproc": limits.processes + (2 if init_watches else 1),
    }
