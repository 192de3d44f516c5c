"""The port between the supervisor and the ways to make a sandbox.

A runtime turns a template into a `Spawner`; a spawner makes guests. What a guest says is none of a runtime's
business: it hands over the socket, and says truthfully which layers it applied.

Which level of isolation a set of layers amounts to.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from fumehood.errors import ForkError
from fumehood.templates.preloads import LeftOut
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.sandbox import ContextInfo, Isolation, IsolationLevel, Layer
from fumehood.values.template import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU time of a whole sandbox so far."""

    user_seconds: float
    system_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLaunch:
    """What a runtime needs to start a context.

    Attributes:
        fds: The guest's ends of its channel, its standard output and its standard error; they stay the caller's.
        info: Its name, language and directory.
        envs: Its environment.
    """

    fds: tuple[int, int, int]
    info: ContextInfo
    envs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a machine has, and what is left of it.

    Attributes:
        memory_available_bytes: Memory that can be had without pushing anything out.
        memory_total_bytes: All memory.
        cpu_cores: Processors.
        load: Tasks that ran or waited to run, on average over the last minute.
        runnable: Tasks that run or wait to run now.
        cpu_pressure: Percentage of the last ten seconds in which a task waited for a processor; None where
            nobody counts.
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
        exited: Its end: the exit code, minus the number of the signal that ended it, or None when nobody can tell.
    """

    exited: asyncio.Future[int | None]

    @property
    def origin(self) -> GuestContext:
        """The context that the runtime itself has started, of which this is a fork; one that is none: itself."""
        return self

    async def settled(self) -> None:
        """Waits until whoever has brought it to its sandbox has ended.

        Raises:
            ForkError: They would not end.
        """
        return

    @abstractmethod
    def kill(self) -> None:
        """Ends the process, but nothing that it has started; killing twice is no error."""


class Guest(ABC):
    """One made sandbox, as its runtime sees it.

    Attributes:
        first_context: The context that it was started with, which may still be getting ready.
        socket: The host's end of the socket to the sandbox's init; non-blocking.
        isolation: The layers that were really applied.
        ended: Done when nothing of the sandbox lives any more.
        policy_digest: Names the system call filter that it runs under: its SHA-256; empty where there is none of ours.
        on_refused: Set it to hear of each refused system call that no program needs: called with its name, and the
            number inside of the process. Where the kernel tells nobody, it is never called.
        on_excess: Set it to end the sandbox when the kernel holds too much for it that no control group is charged for.
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
        """Ends every process of the sandbox, at once and without asking it; killing twice is no error."""

    @property
    @abstractmethod
    def can_freeze(self) -> bool:
        """Whether the host can freeze it; where it cannot, init stops what runs beside it."""

    @abstractmethod
    def freeze(self) -> bool:
        """Lets no process of the sandbox run any more; false while some have not stopped: to be called again."""

    @abstractmethod
    def thaw(self) -> None:
        """Lets all processes go on; one that runs is left alone."""

    def give_memory_back(self) -> str:
        """Has the kernel take back what it can of the memory of what stands still; it may take long.

        Returns:
            By what means.

        Raises:
            OSError: It cannot be asked.
        """
        raise OSError(errno.ENOTSUP, "it has no control group of its own that could be asked")

    @abstractmethod
    def start_context(self, launching: ContextLaunch) -> GuestContext:
        """Starts another context; that it is ready, it says itself on its channel."""

    def abandon(self) -> None:
        """Nobody will use it: ends it, and closes the socket that nobody has taken over."""
        self.kill()
        self.socket.close()

    @property
    def generation(self) -> int:
        """How many forks lie between this guest and one that is none."""
        return 0

    @property
    def carries_forks(self) -> bool:
        """Whether forked guests live that would end with this one."""
        return False

    async def fork(self, sandbox_id: str, limits: Limits) -> Guest:
        """Makes another guest beneath this one, ready to be spoken to, empty, without a context.

        Raises:
            ForkError: It cannot be made; nothing of it remains.
        """
        raise ForkError(step="make the fork", reason=f"{sandbox_id!r} is of a runtime that has no forks")

    async def move_out(
        self,
        making: Awaitable[Guest],
        origin: GuestContext,
        send: Callable[[int], None],
        fds: tuple[int, int, int],
    ) -> GuestContext:
        """Lets a process forked from a checkpoint of this guest become the first context of one forked from it.

        Args:
            making: The other one, which may still be in the making: `fork` of this guest.
            origin: Of the context that the checkpoint was made of.
            send: Hands a socket to the checkpoint, which forks the process that speaks over it.
            fds: The guest's ends of its channel, its standard output and its standard error.

        Raises:
            ForkError: It did not come, or there is nowhere to go.
        """
        raise ForkError(step="move a process into the fork", reason="this runtime has no forks")

    async def end_foreign_processes(self) -> None:  # noqa: B027 - most have none
        """Ends those of its processes that its init may not signal, because they have entered a fork and stayed."""

    def retire(self) -> None:
        """Nothing lives in it but its init: it counts as ended, and really ends when it carries no forks any more."""
        raise NotImplementedError

    def check_network(self, network: Network) -> None:
        """Raises IsolationUnavailableError when this guest cannot be given such a network."""
        return  # most can be given any

    def check_checkpoints(self) -> None:
        """Raises CheckpointUnavailableError when none can be made in this guest, nor what is made of one."""
        return  # most can be kept

    def check_forks(self) -> None:
        """Raises ForkUnavailableError when this guest cannot be forked."""
        return

    @abstractmethod
    def apply(self, limits: Limits) -> None:
        """Changes those limits that can be changed on a living sandbox."""

    @abstractmethod
    def allow_uploaded(self, byte_count: int) -> None:
        """Adds what the host itself has written into the guest's memory-backed files to what its memory may hold."""

    @abstractmethod
    def cpu_time(self) -> CpuTime | None:
        """CPU time that the kernel counted for the whole sandbox; None where nobody counts from outside."""

    @abstractmethod
    def used_cpu_seconds(self) -> float | None:
        """Return the sum of `cpu_time`, without keeping files open for it; None if it is not counted from outside."""

    @abstractmethod
    def halve_cpu_weight(self, halved: bool) -> None:
        """Halve the weight of the sandbox on contended processors, or restore it; no effect where it has none."""

    @abstractmethod
    def memory_bytes(self) -> int | None:
        """Memory in use now, None where nobody counts from outside."""

    @abstractmethod
    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """Most memory in use since the last restart of the count, None where nobody counts from outside."""

    @abstractmethod
    def oom_kills(self) -> int:
        """How many processes of the sandbox the kernel has killed because memory ran out."""


class Spawner(ABC):
    """Makes guests from one template.

    Attributes:
        guest_envs: Environment that everything in a sandbox starts with.
        fixed_limits: Names of the limits that are fixed when a guest is made; `Guest.apply` changes the others.
        ended: Done when no guest can be made any more.
        left_out: The modules of the template's preload list that are not preloaded.
    """

    left_out: tuple[LeftOut, ...] = ()
    guest_envs: dict[str, str]
    fixed_limits: frozenset[str]
    ended: asyncio.Future[None]

    @abstractmethod
    async def spawn(self, sandbox_id: str, limits: Limits, first: Callable[[], ContextLaunch]) -> Guest:
        """Makes one guest, ready to be spoken to, whose first context is getting ready.

        Args:
            sandbox_id: Its name.
            limits: What it may use.
            first: Makes what the first context is started with; called once the guest is on its way.

        Raises:
            SandboxStartError: A step failed; nothing of the guest remains.
        """

    @abstractmethod
    def end_with_guests(self) -> None:
        """Makes no more guests: the template's processes end with the last one, at once if none lives.

        A fork is one of them. The last one counts as ended only when the processes have ended too.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the template's processes, and with them every guest that was made from it."""


class Runtime(ABC):
    """A way to make sandboxes.

    Attributes:
        level: The level of isolation that it makes where nothing is missing; what a guest has reached, the guest says.
    """

    level: IsolationLevel

    def is_possible(self) -> bool:
        """Tells whether this machine looks as if it could; cheap, and no promise: `start` finds out."""
        return True

    @abstractmethod
    def room(self) -> Room:
        """Tells what the machine has left; cheap enough to be asked ten times a second."""

    @abstractmethod
    async def start(self, template: Template) -> Spawner:
        """Prepares a template.

        Raises:
            IsolationUnavailableError: This machine lacks something; the error says what and how to get it.
            TemplateError: The template cannot be used.
        """


# From the strongest to the weakest. Landlock is a second wall where there are namespaces, and the first where not.
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
