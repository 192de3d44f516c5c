"""One context process from its fork to its end, with signals and kills.

A process and its successor under the same context id are different objects. Whatever a guest does, `end` terminates: it
asks init first, which also kills the processes that it has started, then the zygote, and finally kills the whole
sandbox.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fumehood.bounds import MIB
from fumehood.cancellation import keep, when_done
from fumehood.engine.audit_trail import AuditTrail
from fumehood.engine.clock import SandboxClock
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.contexts.usage import Meter
from fumehood.engine.feed import Feed
from fumehood.engine.loop_share import LoopShare
from fumehood.engine.records import Recorder
from fumehood.engine.tasks import PendingCleanups
from fumehood.errors import FumehoodError, LanguageUnavailableError
from fumehood.runtimes.base import GuestContext
from fumehood.values.events import Event
from fumehood.values.execution import Execution
from fumehood.values.languages import ProgramSteps, known_language
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import ExecuteRequest
from fumehood.values.sandbox import ContextInfo
from fumehood_wire.frames import ProtocolError
from fumehood_wire.messages import LANGUAGE_UNAVAILABLE_STATUS

# The time-out of each way to end a process.
_EXIT_SECONDS = 1.0


class Transactor(Protocol):
    """Runs transactional code, whose changes are kept only if it succeeds."""

    async def carry_out(
        self,
        context: Any,
        process: ContextProcess,
        request: ExecuteRequest,
        run: Callable[[ContextProcess], Awaitable[Execution]],
        emit: Callable[[Event], None],
    ) -> Execution:
        """Runs code within the turn of a context."""

    async def observe(
        self, context: Any, process: ContextProcess, run: Callable[[ContextProcess], Awaitable[Execution]]
    ) -> Execution:
        """Runs code, and returns its execution with the files that were changed meanwhile."""


class Watcher(Protocol):
    """Handles security events."""

    @property
    def wants_telemetry(self) -> bool:
        """Whether telemetry of interpreters is requested."""

    def note_telemetry(self, detail: str, process_id: int | None) -> None:
        """Handles telemetry of an interpreter."""

    def note_limit(self, execution_id: str, limit: str) -> None:
        """Handles a limit that an execution has reached."""

    def note_guessed_limit(self, limit: str) -> None:
        """Handles a limit that an execution seems to have reached, by its own error."""

    def note_ran(self, seconds: float) -> None:
        """Handles the end of an execution that took this long."""


class ContextOwner(Protocol):
    """The operations of a sandbox that its contexts use."""

    clock: SandboxClock
    limits: Limits
    meter: Meter
    recorder: Recorder
    audit: AuditTrail
    cleanups: PendingCleanups
    share: LoopShare
    feed: Feed
    isolation_level: str
    template_name: str

    @property
    def security(self) -> Watcher:
        """The handler of security events."""

    @property
    def network(self) -> Network:
        """What the sandbox can reach now."""

    @property
    def ended_by(self) -> FumehoodError | None:
        """Why the sandbox was ended from outside, or None."""

    @property
    def transactions(self) -> Transactor:
        """Runs transactional code."""

    def start_context(
        self, link: ContextConnection, info: ContextInfo, steps: ProgramSteps | None
    ) -> GuestContext:
        """Starts a context process, forked by the zygote, that communicates over the link."""

    async def signal_context(self, pid: int, number: int) -> None:
        """Signals the process group of the context with this pid inside; does nothing if it has ended."""

    async def kill_context(self, pid: int) -> None:
        """Kills the context with this pid inside, and all that it started; does nothing if it has ended."""

    def was_out_of_memory(self, pid: int | None) -> bool:
        """Whether a process that has just ended was killed because memory ran out."""

    def broken(self, error: ProtocolError) -> None:
        """Ends the sandbox, because the context violated the protocol."""

    def end_unkillable(self) -> None:
        """Ends the sandbox, because a process cannot be killed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of a context process: a status, a signal, or the end of the sandbox.

    Attributes:
        status: Its exit code, or minus the number of a signal; None when it is unknown.
        out_of_memory: Whether it was killed because memory ran out.
    """

    status: int | None = None
    out_of_memory: bool = False


class ContextStartError(Exception):
    """A context did not become ready.

    Attributes:
        log_reason: The reason for the log; the message holds the output of the context.
    """

    def __init__(self, info: ContextInfo, output: str) -> None:
        super().__init__(f"the context {info.id!r} ({info.language}) did not become ready: {output}")
        self.log_reason = f"the context ({info.language}) did not become ready"


class ContextProcess:
    """A forked context process.

    Args:
        sandbox: The sandbox of the context.
        info: Its context.
        link: The connection to it.
        guest: The runtime's object.
    """

    def __init__(
        self, sandbox: ContextOwner, info: ContextInfo, link: ContextConnection, guest: GuestContext
    ) -> None:
        loop = asyncio.get_running_loop()
        self.link = link
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self._sandbox = sandbox
        self._info = info
        self._guest = guest
        link.close_guest_fds()
        when_done(link.gone, loop.call_soon, self._channel_closed)
        when_done(guest.exited, lambda: self._note_exit(guest.exited.result()))

    @property
    def origin(self) -> GuestContext:
        """The context that the runtime started: the origin of this fork, or this context itself."""
        return self._guest.origin

    @property
    def lives(self) -> bool:
        """Whether the process lives; False once its end is known."""
        return not self.exited.done()

    @property
    def exit(self) -> Exit:
        """How the process has ended; an `Exit` without a status while it runs."""
        return self.exited.result() if self.exited.done() else Exit()

    async def until_ready(self) -> None:
        """Returns when the process has reported that it is ready.

        Raises:
            LanguageUnavailableError: The template lacks the context's language.
            ContextStartError: The process ended before it was ready, or took too long and was killed.
        """
        seconds = known_language(self._info.language).start_seconds
        await self._sandbox.clock.wait(self.link.ready, self.exited, seconds=seconds)

        if not self.link.is_ready:
            # Its channel closes before its exit status is known.
            await self._sandbox.clock.wait(self.exited, seconds=_EXIT_SECONDS)
            self.forget()

            if self.exit.status == LANGUAGE_UNAVAILABLE_STATUS:
                raise LanguageUnavailableError(
                    language=self._info.language,
                    template=self._sandbox.template_name,
                    reason=self.link.early_output(),
                    how_to_get_it=known_language(self._info.language).way_out,
                )

            raise ContextStartError(self._info, self.link.early_output())

    async def send_signal(self, number: int) -> None:
        """Sends a signal to the process and its process group."""
        if self.link.pid is not None and self.lives:
            await self._sandbox.signal_context(self.link.pid, number)

    async def end(self) -> None:
        """Kills the process and all processes that it started; returns when it has ended."""
        for kill in (self._kill_tree, self._kill_alone, self._kill_sandbox):
            if not self.lives:
                return

            asking = keep(kill())
            await self._sandbox.clock.wait(self.exited, seconds=_EXIT_SECONDS)
            asking.cancel()

    def forget(self) -> None:
        """Ends a process that is not needed, and closes the connection."""
        self._guest.kill()
        self.link.close()

    def close(self, exit_: Exit) -> None:
        """Records how the process ended, and closes the connection."""
        if self.lives:
            self.exited.set_result(exit_)

        self.link.close()

    def _note_exit(self, status: int | None) -> None:
        if self.lives:
            killed_for_memory = self._sandbox.was_out_of_memory(self.link.pid)
            # A process that exited by itself was not killed for memory: another process of the sandbox was.
            self.close(Exit(status, killed_for_memory and status in (None, -signal.SIGKILL)))

    def _channel_closed(self) -> None:
        """Handles a closed channel: either the process is ending, or it must be killed.

        User code may have closed the descriptor.
        """
        if self.lives:
            keep(self._end_if_it_stays())

    async def _end_if_it_stays(self) -> None:
        await self._sandbox.clock.wait(self.exited, seconds=_EXIT_SECONDS)
        await self.end()

    async def _kill_tree(self) -> None:
        if self.link.pid is None:
            self._guest.kill()
        else:
            await self._sandbox.kill_context(self.link.pid)

    async def _kill_alone(self) -> None:
        self._guest.kill()

    async def _kill_sandbox(self) -> None:
        self._sandbox.end_unkillable()


def new_link(
    limits: Limits,
    on_broken: Callable[[ProtocolError], None],
    share: LoopShare,
    name: str | None = None,
    count: int = 0,
) -> ContextConnection:
    """Makes the host's end of the connection to a context that is not forked yet.

    Args:
        limits: The limits of the sandbox, which bound its output.
        on_broken: Called when the context violates the protocol.
        share: The sandbox's share of the loop.
        name: The prefix of its execution ids; None: a new one.
        count: How many executions there have been with this prefix.
    """
    return ContextConnection(
        name or secrets.token_hex(8), on_broken, limits.result_bytes + 2 * MIB, count, share
    )
