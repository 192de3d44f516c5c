"""The host's handle of one sandbox of the Linux runtime: a socket, a pidfd and a cgroup.

Init's greeting is trusted, because no guest code has run by then; afterwards this module reads nothing from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fumehood import failpoints
from fumehood.errors import ForkError, SandboxStartError
from fumehood.runtimes.base import ContextLaunch, Guest, GuestContext
from fumehood.runtimes.launch import launch_fault
from fumehood.runtimes.linux.usage import CountedGuest
from fumehood.runtimes.namespaces.migration import (
    MigrationSource,
    MigrationTarget,
    MovedContext,
    end_foreign_processes,
    end_unreaped_parents,
    move_out,
)
from fumehood.runtimes.namespaces.seccomp_notify import RefusedCalls
from fumehood.runtimes.namespaces.shared_look import SharedLook
from fumehood.runtimes.packets import close_all, receive_word
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation
from fumehood_jail import cgroups, device_nodes
from fumehood_wire import init_messages, messages
from fumehood_wire.frames import Decoder

if TYPE_CHECKING:
    from fumehood.values.looking import ListeningPort

_LAST_WORDS_SECONDS = 1.0
# Nested processes end within milliseconds.
_RELUCTANT_SECONDS = 1.0
_MAX_GREETING_BYTES = 1 << 16
# The byte that an init sends once it exists, and that opens the gate of its first context.
_STARTED = b"!"
_WITH_DEVICES = b"d"


class LinuxGuestSpawner(ABC):
    """The requests of a guest to the spawner that made it."""

    policy_digest: str

    @property
    @abstractmethod
    def has_migrators(self) -> bool:
        """Whether the namespaces of forks are owned by an id that no guest code has.

        Where init measures the memory of contexts, they must have its user id and no other.
        """

    @abstractmethod
    def describe(self, greeting: dict[str, Any]) -> Isolation:
        """Computes the isolation of a guest from its greeting and from the cgroup driver."""

    @abstractmethod
    def start_context(
        self, launching: ContextLaunch, limits: Limits, init_pidfd: int, fds: list[int], cgroup_fds: list[int]
    ) -> LinuxContext:
        """Asks the zygote to fork a context; if init has ended, the context counts as ended too."""

    @abstractmethod
    async def fork(self, parent: LinuxGuest, sandbox_id: str, limits: Limits) -> LinuxGuest:
        """Makes a guest whose namespaces are nested in those of `parent`, and returns it."""

    @abstractmethod
    def ask_to_kill(self, number: int) -> None:
        """Asks the jail init to kill a guest whose processes belong to another user than this process."""

    @abstractmethod
    def ask_to_kill_held(self, pidfd: int) -> None:
        """Asks the jail init to kill a process of another user, which the host refers to by a pidfd."""

    @abstractmethod
    def note_end(self, number: int) -> None:
        """Handles the end of a guest, once."""

    @abstractmethod
    def remove_cgroup(self, cgroup: cgroups.Cgroup) -> None:
        """Removes a guest's cgroup, as soon as its last process has left it."""


class LinuxContext(GuestContext):
    """One context, as the zygote reports it.

    Args:
        kill: Asks the zygote to kill it.
        refused_calls: The listener of its filter.
        branch: The language of the zygote's branch that has forked the context; empty if the zygote itself has forked
            it.
    """

    def __init__(self, kill: Callable[[], None], refused_calls: RefusedCalls, branch: str = "") -> None:
        self.branch = branch
        self.exited = asyncio.get_running_loop().create_future()
        self.refused_calls = refused_calls
        self._kill = kill

    def kill(self) -> None:
        if not self.exited.done():
            self._kill()

    def note_exit(self, status: int) -> None:
        """Records the exit status that the zygote has reaped."""
        if not self.exited.done():
            self.exited.set_result(status)


class LinuxGuest(CountedGuest):
    """One sandbox made by a jail init.

    Args:
        spawner: Sends requests to the jail init.
        number: The number by which the jail init knows the guest.
        slot: Its user id in the base jail.
        limits: Its limits.
        ancestors: The guests that it is forked from, the oldest first.
    """

    first_context: LinuxContext

    def __init__(
        self,
        spawner: LinuxGuestSpawner,
        number: int,
        slot: int,
        limits: Limits,
        ancestors: tuple[LinuxGuest, ...] = (),
    ) -> None:
        self.slot = slot
        # The guests that it is forked from, the oldest first, and those forked from it.
        self.ancestors = ancestors
        self._children: set[LinuxGuest] = set()
        self._is_retired = False
        self._is_watched = False
        self.ended = asyncio.get_running_loop().create_future()
        self.isolation = Isolation(level="none")
        self.on_refused: Callable[[str, int | None], None] = lambda *_: None
        self.on_excess: Callable[[], None] = self.kill
        self._spawner = spawner
        self._number = number
        self._limits = limits
        self._cgroup: cgroups.Cgroup | None = None
        self._pidfd = -1
        self._pid = -1
        self._namespace: int | None = None
        self._uploaded_bytes = 0
        self._last_oom_kills = 0
        self._failure: SandboxStartError | None = None
        self._heard = b""
        self._gate: int | None = None
        self._is_open = False
        self._contexts: list[LinuxContext] = []
        self._ports = SharedLook(self._look_at_ports)

    # -- start

    @contextmanager
    def guest_fds(self) -> Iterator[list[int]]:
        """Makes the descriptors for init: init's end of the socket, and the write end of the gate."""
        self.socket, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._is_open = True
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._gate, gate_write = os.pipe()
        fds = [guest_end.detach(), gate_write]
        try:
            yield fds
        finally:
            close_all(fds)

    def admit(self, cgroup: cgroups.Cgroup | None) -> None:
        """Sends the blocked init its control group descriptors, so that it enters them."""
        self._cgroup = cgroup
        given = self._cgroup_fds()
        word = b"!"
        try:
            # A fork has the device nodes of its parent.
            if not self.ancestors and (devices := device_nodes.make()) is not None:
                word = _WITH_DEVICES
                given.insert(0, devices)

            socket.send_fds(self.socket, [word], given)
        finally:
            close_all(given)

    async def started(self) -> None:
        """Waits until init exists, and opens its pidfd."""
        self._heard, pid = await self._receive()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)

        if not self._heard.startswith(_STARTED):
            # The failure is in the greeting, if there is one.
            await self.greeted()

        if self.ended.done():
            # After its end nothing would close what is opened for it now.
            await self._give_up()

        self._heard = self._heard.removeprefix(_STARTED)
        # The pid cannot have been reused: init is blocked until we read on, or has failed, and then its socket has
        # ended.
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            # It has failed and ended by now: the reason is in its greeting, if there is one.
            await self.greeted()
            await self._give_up()

        self._pid = pid

    async def greeted(self) -> None:
        """Waits for init's greeting: the sandbox is set up and init is confined."""
        decoder = Decoder()
        frames = decoder.feed(self._heard)

        while not frames:
            data, _ = await self._receive()

            if not data:
                await self._give_up()

            frames = decoder.feed(data)

        greeting, payload = frames[0]
        messages.check(init_messages.INIT_GREETING, greeting, payload)

        if greeting["type"] == "failed":
            raise launch_fault(
                str(greeting["step"]), int(greeting["errno"]), str(greeting["detail"]), str(greeting["hint"])
            )

        self.isolation = self._spawner.describe(greeting)
        self.policy_digest = self._spawner.policy_digest

    def start_context(self, launching: ContextLaunch) -> LinuxContext:
        gate, self._gate = self._gate, None
        given = [_open_gate() if gate is None else gate]
        try:
            given += self._cgroup_fds()
            gate_read, *cgroup_fds = given
            fds = [gate_read, *launching.fds]
            context = self._spawner.start_context(launching, self._limits, self._pidfd, fds, cgroup_fds)
            self._contexts = [one for one in self._contexts if not one.refused_calls.is_over]
            self._contexts.append(context)
            return context
        finally:
            close_all(given)

    def network_view(self) -> str | None:
        """The folder of /proc with the statistics of its network namespace, while its init exists."""
        return f"/proc/{self._pid}/net" if self._pidfd >= 0 else None

    async def listening(self) -> tuple[ListeningPort, ...] | None:
        return await self._ports.answer()

    async def _look_at_ports(self) -> tuple[ListeningPort, ...] | None:
        folder = self.network_view()

        if folder is None:
            return None

        # Imported late: a command that runs one program looks at no ports.
        from fumehood.runtimes.namespaces.listening import processes_of, read_listening

        pids = list(self.process_ids())
        namespace = None if pids else self._own_namespace()
        # Without a control group its processes are found among all of the machine.
        return await asyncio.to_thread(
            lambda: read_listening(folder, pids if namespace is None else list(processes_of(namespace)))
        )

    def failed(self, step: str, reason: str) -> None:
        """Records why the jail init could not make this guest."""
        self._failure = SandboxStartError(step=step, reason=reason)

    # -- forks

    @property
    def generation(self) -> int:
        return len(self.ancestors)

    @property
    def carries_forks(self) -> bool:
        return bool(self._children)

    @contextmanager
    def ancestor_fds(self) -> Iterator[list[int]]:
        """Opens the guest's PID and mount namespaces, and the user namespaces of its ancestors and its own."""
        fds: list[int] = []
        try:
            for pid, name in [
                (self._pid, "pid"),
                (self._pid, "mnt"),
                *((one._pid, "user") for one in (*self.ancestors, self)),
            ]:
                fds.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))

            yield fds
        finally:
            close_all(fds)

    @property
    def pidfd(self) -> int:
        """The pidfd of its init."""
        return self._pidfd

    async def fork(self, sandbox_id: str, limits: Limits) -> LinuxGuest:
        return await self._spawner.fork(self, sandbox_id, limits)

    async def move_out(
        self,
        making: Awaitable[Guest],
        origin: GuestContext,
        send: Callable[[int], None],
        fds: tuple[int, int, int],
    ) -> GuestContext:
        if not isinstance(origin, LinuxContext) or not origin.refused_calls.listens:
            raise ForkError(
                step="move a process into the fork",
                reason="the kernel refuses a listener for the system call filter of the context",
                hint="fumehood runs under the seccomp listener of another program, as in a container: run it outside",
            )

        kill_held = self._spawner.ask_to_kill_held
        source = MigrationSource(self.holds, origin.refused_calls, kill_held)
        pidfd, migrator = await move_out(source, self._migration_target(making), send, fds)
        return MovedContext(pidfd, origin, kill_held, migrator)

    @asynccontextmanager
    async def _migration_target(self, making: Awaitable[Guest]) -> AsyncIterator[MigrationTarget]:
        """Waits until the fork exists, and opens its control group descriptors."""
        guest = await making
        assert isinstance(guest, LinuxGuest), "it is a fork of this one"
        cgroup_fds = guest._cgroup_fds()
        try:
            yield MigrationTarget(guest._pid, self._spawner.has_migrators, cgroup_fds)
        finally:
            close_all(cgroup_fds)

    def holds(self, namespace: int) -> bool:
        """Whether the PID namespace with this inode number belongs to the guest."""
        return self._own_namespace() == namespace

    def _own_namespace(self) -> int | None:
        """The inode number of its PID namespace; None if the guest has ended and the end has not been reported yet."""
        if self._namespace is None and self._pid > 0:
            with suppress(OSError):
                self._namespace = os.stat(f"/proc/{self._pid}/ns/pid").st_ino

        return self._namespace

    def expect(self, child: LinuxGuest) -> None:
        """Records a guest that is being forked from this one."""
        self._children.add(child)

    def watch(self) -> None:
        """Watches the pidfd for its end: the jail init does not report the end of a fork."""
        self._is_watched = True
        asyncio.get_running_loop().add_reader(self._pidfd, self._spawner.note_end, self._number)

    async def end_foreign_processes(self) -> None:
        await end_foreign_processes(self.holds, self._pid, self._spawner.ask_to_kill_held)

    def retire(self) -> None:
        self._is_retired = True

        if not self.ended.done():
            self.ended.set_result(None)

        if not self._children:
            self._kill_init()

    def _forget(self, child: LinuxGuest) -> None:
        self._children.discard(child)

        if self._is_retired and not self._children:
            self._kill_init()

    # -- life

    def kill(self) -> None:
        if not self.ended.done():
            self._kill_init()

    def _kill_init(self) -> None:
        # The end of a PID namespace's init ends all other processes in it; there is no list of pids to race against.
        if self._pidfd < 0:
            self._spawner.ask_to_kill(self._number)
            return

        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._spawner.ask_to_kill_held(self._pidfd)

        if self._cgroup is not None:
            self._cgroup.kill_frozen()

        self._look_after()

    def _look_after(self) -> None:
        if self.ancestors:
            self.ended.get_loop().call_later(_RELUCTANT_SECONDS, self._end_unreaped_parents)

    def _end_unreaped_parents(self) -> None:
        # A process in the parent sandbox keeps a zombie of it until then.
        if self._pidfd >= 0:
            end_unreaped_parents(self.ancestors[-1].holds, self._spawner.ask_to_kill_held)
            self._look_after()

    @property
    def can_freeze(self) -> bool:
        return self._cgroup is not None and self._cgroup.can_freeze

    def freeze(self) -> bool:
        return self._cgroup is None or self._cgroup.freeze()

    def thaw(self) -> None:
        if self._cgroup is not None and self._cgroup.is_frozen:
            self._cgroup.thaw()

    def give_memory_back(self) -> str:
        return super().give_memory_back() if self._cgroup is None else self._cgroup.give_memory_back()

    def abandon(self) -> None:
        """Ends a guest that will not be used, and closes its socket."""
        self.kill()

        if self._is_open:
            self.socket.close()

    def apply(self, limits: Limits) -> None:
        changed = limits.memory_bytes != self._limits.memory_bytes
        self._limits = limits

        if changed and self._cgroup is not None:
            self._cgroup.set_memory_bytes(limits.memory_bytes + self._uploaded_bytes)

    def allow_uploaded(self, byte_count: int) -> None:
        if self._cgroup is None:
            return

        self._uploaded_bytes = min(self._uploaded_bytes + byte_count, self._limits.disk_bytes)
        self._cgroup.set_memory_bytes(self._limits.memory_bytes + self._uploaded_bytes)

    def note_end(self) -> None:
        """Releases what the host holds for the sandbox, after its last process has ended."""
        if self._is_watched:
            asyncio.get_running_loop().remove_reader(self._pidfd)

        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

        if self._gate is not None:
            os.close(self._gate)
            self._gate = None

        for context in self._contexts:
            context.refused_calls.close()

        cgroup, self._cgroup = self._cgroup, None
        try:
            if cgroup is not None:
                self._let_go(cgroup)
        finally:
            # `ended` is set even if reading or removing something has failed.
            if not self.ended.done():
                self.ended.set_result(None)

            for ancestor in self.ancestors[-1:]:
                ancestor._forget(self)

    # -- inside

    def _let_go(self, cgroup: cgroups.Cgroup) -> None:
        try:
            failpoints.reach_sync("delete.cgroup", self)
            cgroup.kill_frozen()
            self._last_oom_kills = cgroup.oom_kills()
        finally:
            self._spawner.remove_cgroup(cgroup)

    def _cgroup_fds(self) -> list[int]:
        return self._cgroup.open_cgroup_fds() if self._cgroup is not None else []

    async def _give_up(self) -> None:
        # The jail init knows the reason, and reports it on its own socket.
        await asyncio.wait([self.ended], timeout=_LAST_WORDS_SECONDS)
        raise self._failure or SandboxStartError(step="greeting", reason="init ended before it was ready")

    async def _receive(self) -> tuple[bytes, int]:
        try:
            return await receive_word(self.socket, _MAX_GREETING_BYTES)
        except OSError:
            return b"", 0


def _open_gate() -> int:
    """Returns a gate that is open, for a sandbox that has been set up already."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"!")
    os.close(write_end)
    return read_end
