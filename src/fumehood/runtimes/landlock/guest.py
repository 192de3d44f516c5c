"""The host's handle of one sandbox without namespaces: two sockets, a liveness pipe and perhaps a cgroup.

When this process ends for any reason, the reaper reads the end of the pipe and ends the sandbox. Init's
greeting is trusted, because no guest code has run by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fumehood.errors import (
    CheckpointUnavailableError,
    ForkUnavailableError,
    IsolationUnavailableError,
    SandboxStartError,
)
from fumehood.runtimes.base import ContextLaunch, GuestContext
from fumehood.runtimes.launch import launch_fault
from fumehood.runtimes.linux.usage import CountedGuest
from fumehood.runtimes.packets import PacketSocket, until_readable
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.sandbox import Isolation
from fumehood_jail import cgroups
from fumehood_wire import init_messages, messages
from fumehood_wire.frames import Decoder

_LAST_WORDS_SECONDS = 1.0
_MAX_GREETING_BYTES = 1 << 16
# That it has failed, or that it has ended.
_ANSWERS_FOR_A_CONTEXT = 1


class LandlockGuestSpawner(ABC):
    """The requests of a guest to the spawner that made it."""

    host_pidfd: int

    @abstractmethod
    def next_number(self) -> int:
        """Returns a number that is unique and carries no information."""

    @abstractmethod
    def describe(self, greeting: dict[str, Any]) -> Isolation:
        """Computes the isolation of a guest from its greeting and from the cgroup driver."""

    @abstractmethod
    def remove_cgroup(self, cgroup: cgroups.Cgroup) -> None:
        """Removes a guest's cgroup, as soon as its last process has left it."""


class LandlockContext(GuestContext):
    """One context, as init reports it."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.exited = asyncio.get_running_loop().create_future()
        self._kill = kill

    def kill(self) -> None:
        if not self.exited.done():
            self._kill()

    def note_exit(self, status: int) -> None:
        """Records the exit status of the context, which init has reaped."""
        if not self.exited.done():
            self.exited.set_result(status)


class LandlockGuest(CountedGuest):
    """One sandbox that a zygote has forked."""

    first_context: LandlockContext

    def __init__(self, spawner: LandlockGuestSpawner, number: int, folder: str, limits: Limits) -> None:
        self.number = number
        self.folder = folder
        self.ended = asyncio.get_running_loop().create_future()
        self.isolation = Isolation(level="none")
        self.on_excess: Callable[[], None] = self.kill
        self._spawner = spawner
        self._limits = limits
        self._cgroup: cgroups.Cgroup | None = None
        self._orders: PacketSocket | None = None
        self._liveness = -1
        self._contexts: dict[int, LandlockContext] = {}
        self._uploaded_bytes = 0
        self._last_oom_kills = 0
        self._failure: SandboxStartError | None = None
        self._is_open = False

    # -- start

    @contextmanager
    def guest_fds(self, cgroup: cgroups.Cgroup | None) -> Iterator[list[int]]:
        """Yields the reaper's descriptors: its ends of both sockets, the liveness pipe, and the control group."""
        self._cgroup = cgroup
        self.socket, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self._is_open = True
        orders, orders_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = PacketSocket(orders, self._init_says, self._init_silent)
        liveness_end, self._liveness = os.pipe()
        cgroup_fds = [] if cgroup is None else cgroup.open_cgroup_fds()
        fds = [guest_end.detach(), orders_end.detach(), liveness_end]
        try:
            yield [*fds, self._spawner.host_pidfd, *cgroup_fds]
        finally:
            for fd in (*fds, *cgroup_fds):
                os.close(fd)

    def network_view(self) -> str | None:
        """Always None: the guest has no network namespace, and cannot have listening sockets."""
        return None

    async def greeted(self) -> None:
        """Waits for init's greeting: the sandbox is restricted, and its folders exist."""
        decoder = Decoder()
        frames: list[Any] = []

        while not frames:
            await until_readable(self.socket.fileno())
            try:
                data = self.socket.recv(_MAX_GREETING_BYTES)
            except OSError:
                data = b""

            if not data:
                await asyncio.wait([self.ended], timeout=_LAST_WORDS_SECONDS)
                raise self._failure or SandboxStartError(
                    step="greeting", reason="init ended before it was ready"
                )

            frames = list(decoder.feed(data))

        greeting, payload = frames[0]
        messages.check(init_messages.INIT_GREETING, greeting, payload)

        if greeting["type"] == "failed":
            raise launch_fault(
                str(greeting["step"]), int(greeting["errno"]), str(greeting["detail"]), str(greeting["hint"])
            )

        self.isolation = self._spawner.describe(greeting)

    def start_context(self, launching: ContextLaunch) -> LandlockContext:
        number = self._spawner.next_number()
        context = LandlockContext(lambda: self._order({"type": "kill_context", "number": number}))

        if self._orders is None or self._orders.closed:
            context.note_exit(1)
            return context

        self._contexts[number] = context
        file = os.memfd_create("fumehood-context")
        try:
            os.write(file, json.dumps(launching.as_message()).encode())
            order = {"type": "start_context", "number": number}
            self._orders.send(order, [file, *launching.fds], answers=_ANSWERS_FOR_A_CONTEXT)
        finally:
            os.close(file)

        return context

    def failed(self, step: str, reason: str) -> None:
        """Records why the zygote could not make this guest."""
        self._failure = SandboxStartError(step=step, reason=reason)

    # -- life

    def kill(self) -> None:
        if self._liveness < 0:
            return

        liveness, self._liveness = self._liveness, -1
        try:
            # A fork of this process may hold the pipe as well, so closing it is not enough: a byte tells the reaper to
            # end.
            os.write(liveness, b"!")
        except BrokenPipeError:
            pass  # the reaper has ended, and the launcher kills what it has left
        finally:
            os.close(liveness)

    @property
    def can_freeze(self) -> bool:
        """Always False: the reaper would be frozen too; init stops the other processes by signals."""
        return False

    def freeze(self) -> bool:
        return True

    def thaw(self) -> None:
        """Does nothing."""

    def abandon(self) -> None:
        """Ends a guest that will not be used, and closes its socket."""
        self.kill()

        if self._is_open:
            self.socket.close()

    def check_network(self, network: Network) -> None:
        if network != Network():
            raise IsolationUnavailableError(
                layer="network namespace",
                reason=f"a sandbox of the level 'landlock-only' reaches nothing, not network={network.level!r}",
                how_to_get_it="leave `network` away, or run it where namespaces can be had",
            )

    def check_checkpoints(self) -> None:
        raise CheckpointUnavailableError(level=self.isolation.level)

    def check_forks(self) -> None:
        raise ForkUnavailableError(level=self.isolation.level)

    def apply(self, limits: Limits) -> None:
        changed = limits.memory_bytes != self._limits.memory_bytes
        self._limits = limits

        if changed and self._cgroup is not None:
            self._cgroup.set_memory_bytes(limits.memory_bytes)

    def allow_uploaded(self, byte_count: int) -> None:
        """Does nothing: files are on the host's disk, and not in the guest's memory."""

    def note_end(self) -> None:
        """Releases what the host holds for the sandbox, after its last process has ended."""
        self.kill()

        if self._orders is not None:
            self._orders.close()

        self._init_silent()
        cgroup, self._cgroup = self._cgroup, None
        try:
            if cgroup is not None:
                self._last_oom_kills = cgroup.oom_kills()
                self._spawner.remove_cgroup(cgroup)
        finally:
            if not self.ended.done():
                self.ended.set_result(None)

    # -- inside

    def _order(self, message: dict[str, Any]) -> None:
        if self._orders is not None:
            self._orders.send(message)

    def _init_says(self, message: dict[str, Any]) -> None:
        context = self._contexts.pop(int(message["number"]), None)

        if context is not None:
            context.note_exit(int(message["status"]) if message["type"] == "context_exited" else 1)

    def _init_silent(self) -> None:
        while self._contexts:
            self._contexts.popitem()[1].note_exit(-9)
