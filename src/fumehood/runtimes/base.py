"""The port between the engine and the runtimes.

A runtime turns a template into a `Spawner`; a spawner makes guests. A runtime does not interpret what a guest sends: it
hands over the socket, and reports truthfully which layers it applied. `isolation_of` computes the isolation level from
a set of layers.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fumehood.errors import ForkError
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.languages import ProgramSteps
from fumehood.values.sandbox import ContextInfo, Isolation, IsolationLevel, Layer
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.templates.recipe import SkippedModule
    from fumehood.values.limits import Limits
    from fumehood.values.looking import ListeningPort
    from fumehood.values.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU time of a whole sandbox so far, in seconds."""

    user_seconds: float
    system_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLaunch:
    """The arguments with which a runtime starts a context.

    Attributes:
        fds: The guest's ends of its channel, its standard output and its standard error; the caller closes them.
        info: Its name, language and directory.
        envs: Its environment variables.
        steps: How the context turns each cell into a complete program; None if its language keeps state between
            cells.
    """

    fds: tuple[int, int, int]
    info: ContextInfo
    envs: Mapping[str, str]
    steps: ProgramSteps | None = None

    def as_message(self) -> dict[str, Any]:
        """Returns the arguments as the message that the context receives."""
        return {
            "context_id": self.info.id,
            "language": self.info.language,
            "cwd": self.info.cwd,
            "envs": dict(self.envs),
            "program": None if self.steps is None else self.steps.as_message(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The total and the available capacity of a machine.

    Attributes:
        memory_available_bytes: Memory that is free, or can be freed without evicting anything in use.
        memory_total_bytes: All memory.
        cpu_cores: Processors.
        load: Tasks that ran or waited to run, on average over the last minute.
        runnable: Tasks that run or wait to run now.
        cpu_pressure: Percentage of the last ten seconds in which a task waited for a processor; None where the kernel
            does not count it.
    """

    memory_available_bytes: int
    memory_total_bytes: int
    cpu_cores: float
    load: float
    runnable: int
    cpu_pressure: float | None


class GuestContext(ABC):
    """One context process, as its runtime sees it.

    Attributes:
        exited: Its end: the exit code, minus the number of the signal that ended it, or None when it is unknown.
    """

    exited: asyncio.Future[int | None]

    @property
    def origin(self) -> GuestContext:
        """The context started by the runtime itself that this one is a fork of; the context itself if it is no fork."""
        return self

    async def settled(self) -> None:
        """Waits until the process that brought the context into its sandbox has ended.

        Raises:
            ForkError: That process did not end in time.
        """
        return

    @abstractmethod
    def kill(self) -> None:
        """Ends the process, but not the processes that it has started; a second call does nothing."""


class Guest(ABC):
    """One sandbox, as its runtime sees it.

    Attributes:
        first_context: The context that it was started with, which may not be ready yet.
        socket: The host's end of the socket to the sandbox's init; non-blocking.
        isolation: The layers that were really applied.
        ended: Done when no process of the sandbox is left.
        policy_digest: The SHA-256 of the system call filter that it runs under; empty if it is not one of ours.
        on_refused: Called for each refused system call that programs do not normally make, with its name and the
            number of the process inside the sandbox. Never called where the kernel has no listener.
        on_excess: Called to end the sandbox when the kernel holds too much memory for it that no control group is
            charged for.
    """

    first_context: GuestContext
    socket: socket.socket
    isolation: Isolation
    ended: asyncio.Future[None]
    policy_digest: str = ""
    on_refused: Callable[[str, int | None], None]
    on_excess: Callable[[], None]

    @abstractmethod
    def kill(self) -> None:
        """Ends every process of the sandbox at once, without its cooperation; a second call does nothing."""

    @property
    @abstractmethod
    def can_freeze(self) -> bool:
        """Whether the host can freeze it; otherwise init stops the other processes by signals."""

    @abstractmethod
    def freeze(self) -> bool:
        """Stops all processes of the sandbox; returns False while some have not stopped: call it again."""

    @abstractmethod
    def thaw(self) -> None:
        """Lets all processes run again; no effect on a running sandbox."""

    def give_memory_back(self) -> str:
        """Asks the kernel to reclaim memory of a frozen sandbox; it may take long.

        Returns:
            The kernel interface that was used.

        Raises:
            OSError: The kernel has no such interface, or refused.
        """
        raise OSError(errno.ENOTSUP, "it has no control group of its own that could be asked")

    @abstractmethod
    def start_context(self, launching: ContextLaunch) -> GuestContext:
        """Starts another context; the context reports on its own channel when it is ready."""

    def abandon(self) -> None:
        """Ends a guest that will not be used, and closes its socket."""
        self.kill()
        self.socket.close()

    @property
    def generation(self) -> int:
        """The number of forks between this guest and its first ancestor."""
        return 0

    @property
    def carries_forks(self) -> bool:
        """Whether forked guests are alive that would end with this one."""
        return False

    async def fork(self, sandbox_id: str, limits: Limits) -> Guest:
        """Makes another guest in namespaces nested in this guest's: ready for requests, without files and contexts.

        Raises:
            ForkError: The fork cannot be made; no part of it remains.
        """
        raise ForkError(step="make the fork", reason=f"{sandbox_id!r} is of a runtime that has no forks")

    async def move_out(
        self,
        making: Awaitable[Guest],
        origin: GuestContext,
        send: Callable[[int], None],
        fds: tuple[int, int, int],
    ) -> GuestContext:
        """Migrates a process forked from a checkpoint of this guest into a fork of it, as its first context.

        Args:
            making: The fork, which may still be in the making: `fork` of this guest.
            origin: The context that the checkpoint was made of.
            send: Hands a socket to the checkpoint, which then forks a process that uses it.
            fds: The guest's ends of its channel, its standard output and its standard error.

        Raises:
            ForkError: The process did not report in, or there is no fork to enter.
        """
        raise ForkError(step="move a process into the fork", reason="this runtime has no forks")

    async def end_foreign_processes(self) -> None:  # noqa: B027 - most have none
        """Kills processes that entered a fork and did not exit, which the guest's init may not signal."""

    def retire(self) -> None:
        """Marks a guest as ended whose only process is init; the init is killed when its last fork has ended."""
        raise NotImplementedError

    def check_network(self, network: Network) -> None:
        """Raises IsolationUnavailableError when this guest cannot be given such a network."""
        return  # most runtimes support any network

    def check_checkpoints(self) -> None:
        """Raises CheckpointUnavailableError when this guest has no checkpoints, and so no transactions or forks."""
        return  # most runtimes support checkpoints

    def check_forks(self) -> None:
        """Raises ForkUnavailableError when this guest cannot be forked."""
        return

    @abstractmethod
    def apply(self, limits: Limits) -> None:
        """Changes the limits that can be changed on a living sandbox."""

    @abstractmethod
    def allow_uploaded(self, byte_count: int) -> None:
        """Raises the memory limit by the bytes that the host has written into the guest's memory-backed files."""

    @abstractmethod
    def cpu_time(self) -> CpuTime | None:
        """CPU time that the kernel counted for the whole sandbox; None where it is not counted from outside."""

    @abstractmethod
    def used_cpu_seconds(self) -> float | None:
        """Return the sum of `cpu_time`, without keeping files open for it; None if it is not counted from outside."""

    @abstractmethod
    def halve_cpu_weight(self, halved: bool) -> None:
        """Halve the weight of the sandbox on contended processors, or restore it; no effect where it has none."""

    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Memory in use now; None where it is not counted from outside."""

    @abstractmethod
    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Peak memory since the last restart of the count; None where it is not counted from outside."""

    def process_count(self) -> int | None:
        """The number of living processes; None where it is not known from outside."""
        return None

    async def listening(self) -> tuple[ListeningPort, ...] | None:
        """The ports on which its programs listen, as the kernel knew it at most a second ago.

        None where it has no network of its own.
        """
        return None

    @abstractmethod
    def oom_kills(self) -> int:
        """The number of processes of the sandbox that the kernel has killed because memory ran out."""


class Spawner(ABC):
    """Makes guests from one template.

    Attributes:
        guest_envs: Environment variables of every process in a sandbox.
        fixed_limits: Names of the limits that are fixed when a guest is made; `Guest.apply` changes the others.
        ended: Done when no guest can be made any more.
        left_out: The modules of the template's preload list that are not preloaded.
        workdir: The folder in which code and commands start.
    """

    left_out: tuple[SkippedModule, ...] = ()
    workdir: str = HOME_PATH
    guest_envs: dict[str, str]
    fixed_limits: frozenset[str]
    ended: asyncio.Future[None]

    @abstractmethod
    async def spawn(self, sandbox_id: str, limits: Limits, first: Callable[[], ContextLaunch]) -> Guest:
        """Makes one guest, ready for requests, whose first context is starting.

        Args:
            sandbox_id: Its id.
            limits: Its resource limits.
            first: Returns the launch data of the first context; called after the launch of the guest was requested.

        Raises:
            SandboxStartError: A step failed; no part of the guest remains.
        """

    @abstractmethod
    def end_with_guests(self) -> None:
        """Stops making guests: the template's processes end with the last guest, at once if none lives.

        A fork counts as a guest. The last guest counts as ended only when the template's processes have ended too.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the template's processes, and with them every guest that was made from it."""


class Runtime(ABC):
    """One way to make sandboxes.

    Attributes:
        level: The isolation level that it reaches when no layer is missing; each guest reports what it really has.
    """

    level: IsolationLevel

    def is_possible(self) -> bool:
        """Returns whether this machine seems to support it; cheap, and no guarantee: only `start` finds out."""
        return True

    @abstractmethod
    def room(self) -> Room:
        """Returns the machine's available capacity; cheap enough to be called ten times a second."""

    @abstractmethod
    async def start(self, template: Template) -> Spawner:
        """Prepares a template.

        Raises:
            IsolationUnavailableError: This machine lacks something; the error says what and how to get it.
            TemplateError: The template cannot be used.
        """


# From the strongest to the weakest. Landlock is a second barrier where there are namespaces, and the first elsewhere.
_STANDS_ON: dict[IsolationLevel, frozenset[str]] = {
    "namespaces": frozenset(
        (
            "namespaces",
            "identity",
            "filesystem root",
            "capabilities",
            "no new privileges",
            "seccomp",
            "network",
        )
    ),
    "landlock-only": frozenset(
        (
            "capabilities",
            "no new privileges",
            "seccomp",
            "landlock files",
            "landlock signals",
            "network",
        )
    ),
}


def isolation_of(layers: Iterable[Layer]) -> Isolation:
    """Returns the layers with the strongest level that they amount to."""
    layers = tuple(layers)
    standing = {layer.name for layer in layers if layer.state != "off"}
    level: IsolationLevel = next(
        (level for level, needed in _STANDS_ON.items() if needed <= standing), "none"
    )
    return Isolation(level=level, layers=layers)
