"""A context as the API has it: one id, one language, one execution at a time, whatever happens to its process.

Runs in the host process, on the engine's loop. Executions are queued in order. One that exceeds a limit is
interrupted first and killed after a grace; a context that dies is replaced by a fresh one, and the execution
says that the state is lost. How the process is started and signalled is its sandbox's business, reached
through `ContextHost`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from fumehood.backends.requests import ExecuteRequest
from fumehood.events import ErrorEvent, Event, ExecutionStarted
from fumehood.execution import Execution, ExecutionError
from fumehood.host.context_link import ContextLink, Running
from fumehood.host.measuring import Meter
from fumehood.limits import MIB, Limits
from fumehood.models import ContextInfo, Truncation
from fumehood.runtimes.base import GuestContext
from fumehood.transcript import Transcript
from fumehood_wire.frames import ProtocolError

_READY_SECONDS = 20.0
# A context that closed its channel but does not end is ended after this time.
_EXIT_SECONDS = 1.0
_CPU_LOOK_SECONDS = 0.02

StopKind = Literal["time_limit", "cpu_limit", "interrupted"]


class ContextHost(Protocol):
    """What a context needs of its sandbox."""

    limits: Limits
    meter: Meter
    isolation_level: str

    def start_context(self, link: ContextLink, info: ContextInfo) -> GuestContext:
        """Has a context forked that speaks over the link."""

    async def signal_context(self, pid: int, number: int) -> None:
        """Sends a signal to the group of the context with this number inside; no error if it is gone."""

    async def kill_context(self, pid: int) -> None:
        """Kills the context with this number inside, and all that it started; no error if it is gone."""

    def was_out_of_memory(self, pid: int | None) -> bool:
        """Whether a process that has just ended was killed for want of memory."""

    def broken(self, error: ProtocolError) -> None:
        """The context broke the wire: the sandbox ends."""


@dataclass(slots=True)
class _Exit:
    """How a context process ended."""

    status: int | None = None
    out_of_memory: bool = False


class LiveContext:
    """One context of a sandbox."""

    def __init__(self, host: ContextHost, info: ContextInfo) -> None:
        self.info = info
        self._host = host
        self._link: ContextLink | None = None
        self._starting: asyncio.Task[ContextLink] | None = None
        self._turn = asyncio.Lock()
        self._process: GuestContext | None = None
        self._exit: asyncio.Future[_Exit] | None = None
        self._stop: _Stop | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """True while something runs or waits to run."""
        return self._turn.locked()

    def adopt(self, link: ContextLink, process: GuestContext) -> None:
        """Takes over a process that is forked already; `settle` waits until it is ready."""
        self._take(link, process)
        self._starting = asyncio.create_task(self._until_ready(link))

    async def settle(self) -> None:
        """Returns when the process that is starting is ready."""
        if self._starting is not None:
            await asyncio.shield(self._starting)

    async def start(self) -> None:
        """Starts the process unless it lives; returns when it is ready."""
        await self._living_link()

    async def execute(self, request: ExecuteRequest, emit: Callable[[Event], None]) -> Execution:
        """Runs code after what was asked before; emits what happens, and returns everything once more."""
        async with self._turn:
            return await self._run(await self._living_link(), request, emit)

    def interrupt(self) -> bool:
        """Interrupts what runs; false if nothing does."""
        if self._stop is None:
            return False

        self._stop.begin("interrupted")
        return True

    def answer_input(self, execution_id: str, request_id: str, text: str | None) -> None:
        """Answers a question of the running execution."""
        if self._link is not None:
            self._link.answer_input(execution_id, request_id, text)

    async def send_signal(self, number: int) -> None:
        """Sends a signal to the process and its group."""
        if self._link is not None and self._link.pid is not None:
            await self._host.signal_context(self._link.pid, number)

    async def replace(self) -> None:
        """Kills the process and starts a fresh one; what ran is told that its context died."""
        await self.kill()
        self._closed = False
        await self.start()

    async def kill(self) -> None:
        """Kills the process with all that it started."""
        self._closed = True

        if self._exit is not None:
            await self.end_process()
            await asyncio.wait([self._exit], timeout=_EXIT_SECONDS)

        self._drop_link()

    def close(self) -> None:
        """The sandbox has ended: lets go of everything."""
        self._closed = True
        self._note_exit(_Exit(-signal.SIGKILL))
        self._drop_link()

        if self._starting is not None:
            self._starting.cancel()

    # -- the process

    async def _living_link(self) -> ContextLink:
        if self._link is not None and self._link.is_ready:
            return self._link

        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())

        return await asyncio.shield(self._starting)

    async def _start(self) -> ContextLink:
        link = new_link(self._host.limits, self._host.broken)
        self._take(link, self._host.start_context(link, self.info))
        return await self._until_ready(link)

    def _take(self, link: ContextLink, process: GuestContext) -> None:
        link.close_guest_fds()
        self._exit = asyncio.get_running_loop().create_future()
        self._link = link
        self._process = process
        process.exited.add_done_callback(lambda exited: self._process_ended(link, process, exited.result()))

    def _process_ended(self, link: ContextLink, process: GuestContext, status: int) -> None:
        if self._process is not process:
            return

        self._process = None
        self._note_exit(_Exit(status, self._host.was_out_of_memory(link.pid)))
        self._drop_link()

    def _note_exit(self, exit_: _Exit) -> None:
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(exit_)

    async def end_process(self) -> None:
        """Kills the process; all that it started goes with it once it has told its number inside."""
        if self._link is not None and self._link.pid is not None:
            await self._host.kill_context(self._link.pid)
        elif self._process is not None:
            self._process.kill()

    async def _until_ready(self, link: ContextLink) -> ContextLink:
        loop = asyncio.get_running_loop()
        ended = self._exit
        try:
            waited: list[asyncio.Future[Any]] = [link.ready] if ended is None else [link.ready, ended]
            await asyncio.wait(waited, timeout=_READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)

            if not link.ready.done() or link.ready.cancelled():
                raise ContextStartError(self.info, link.early_output())
        except BaseException:
            self._drop_link()
            raise

        link.gone.add_done_callback(lambda _: loop.call_soon(self._channel_closed, link))
        return link

    def _channel_closed(self, link: ContextLink) -> None:
        """The context closed its channel: it is ending, or user code has closed the descriptor and it must end."""
        if self._link is link and self._exit is not None and not self._exit.done():
            task = asyncio.create_task(self._end_within(self._exit))
            _keep(task)

    async def _end_within(self, ended: asyncio.Future[_Exit]) -> None:
        done, _ = await asyncio.wait([ended], timeout=_EXIT_SECONDS)

        if not done:
            await self.end_process()

    def _drop_link(self) -> None:
        link, self._link = self._link, None

        if link is not None:
            link.close()

    # -- one execution

    async def _run(
        self, link: ContextLink, request: ExecuteRequest, emit: Callable[[Event], None]
    ) -> Execution:
        host = self._host
        limits = host.limits
        reading = host.meter.begin()
        transcript = Transcript(
            execution_id=link.next_execution_id,
            context_id=self.info.id,
            limits=limits,
            isolation=host.isolation_level,
            started_at=datetime.now(UTC),
        )

        def record(event: Event) -> None:
            passed = transcript.add(event)

            if passed is not None:
                emit(passed)

        emit(ExecutionStarted(execution_id=link.next_execution_id, context_id=self.info.id))
        running = link.execute(request.code, _request_fields(request, limits), record)
        wall_seconds = request.wall_seconds or limits.wall_seconds
        self._stop = _Stop(self, limits.grace_seconds)
        clock = self._stop.after(wall_seconds, "time_limit")
        watch = (
            asyncio.create_task(self._watch_cpu(reading, limits.cpu_seconds)) if limits.cpu_seconds else None
        )
        try:
            reply = await self._reply(running)
        except asyncio.CancelledError:
            self._stop.begin("interrupted")
            await self._reply(running)
            raise
        finally:
            stop, self._stop = self._stop, None
            clock.cancel()
            stop.end()

            if watch is not None:
                watch.cancel()

        exit_ = (
            self._exit.result() if reply is None and self._exit is not None and self._exit.done() else _Exit()
        )
        error = _stopped_error(stop, reply, exit_, wall_seconds, limits) or transcript.error
        execution = transcript.finish(
            usage=host.meter.end(reading, running, request, reply),
            execution_count=None if reply is None else reply["execution_count"],
            error=None if error is transcript.error else error,
            state_lost=reply is None,
            dropped_by_guest=_dropped(reply),
        )

        if error is not None and error is not transcript.error:
            emit(ErrorEvent(error=error, at_seconds=execution.usage.wall_seconds))

        if reply is None and not self._closed:
            # The next execution should not have to wait for the replacement.
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

        return execution

    async def _reply(self, running: Running) -> dict[str, Any] | None:
        """Waits for the reply; None when the context is gone, and then also for init's word on how it ended."""
        reply = await asyncio.shield(running.reply)

        if reply is None and self._exit is not None and not self._exit.done():
            await asyncio.wait([self._exit], timeout=_EXIT_SECONDS)

        return reply

    async def _watch_cpu(self, reading: Any, limit_seconds: float) -> None:
        """Looks when the limit can have been reached at the earliest, and again, until it is."""
        cores = os.cpu_count() or 1

        while True:
            left = limit_seconds - await self._host.meter.cpu_seconds_since(reading)

            if left <= 0:
                if self._stop is not None:
                    self._stop.begin("cpu_limit")

                return

            await asyncio.sleep(max(left / cores, _CPU_LOOK_SECONDS))


def new_link(limits: Limits, on_broken: Callable[[ProtocolError], None]) -> ContextLink:
    """Makes the host's side of a context that is not forked yet."""
    return ContextLink(secrets.token_hex(8), on_broken, limits.result_bytes + 2 * MIB)


class ContextStartError(Exception):
    """A context did not become ready."""

    def __init__(self, info: ContextInfo, output: str) -> None:
        super().__init__(f"the context {info.id!r} ({info.language}) did not become ready: {output}")


class _Stop:
    """Stops one execution: an interrupt at once, a kill after the grace."""

    def __init__(self, context: LiveContext, grace_seconds: float) -> None:
        self.kind: StopKind | None = None
        self._context = context
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._kill_timer: asyncio.TimerHandle | None = None

    def after(self, seconds: float, kind: StopKind) -> asyncio.TimerHandle:
        """Begins after a time."""
        return self._loop.call_later(seconds, self.begin, kind)

    def begin(self, kind: StopKind) -> None:
        """Sends the interrupt; the first reason counts."""
        if self.kind is not None:
            return

        self.kind = kind
        _keep(asyncio.create_task(self._context.send_signal(signal.SIGINT)))
        self._kill_timer = self._loop.call_later(self._grace_seconds, self._kill)

    def end(self) -> None:
        """The execution is over."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()

    def _kill(self) -> None:
        _keep(asyncio.create_task(self._context.end_process()))


_tasks: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """Holds on to a task until it is done; the loop itself would not."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def _request_fields(request: ExecuteRequest, limits: Limits) -> dict[str, Any]:
    return {
        "stdout_bytes": limits.stdout_bytes,
        "stderr_bytes": limits.stderr_bytes,
        "result_bytes": limits.result_bytes,
        "result_count": limits.result_count,
        "allow_stdin": request.allow_input,
        "silent": request.silent,
        "store_history": not request.silent,
        "envs": dict(request.envs),
    }


def _dropped(reply: dict[str, Any] | None) -> Truncation:
    if reply is None:
        return Truncation()

    dropped = reply["dropped"]
    return Truncation(
        stdout_bytes=dropped["stdout"], stderr_bytes=dropped["stderr"], results=dropped["results"]
    )


def _stopped_error(
    stop: _Stop, reply: dict[str, Any] | None, exit_: _Exit, wall_seconds: float, limits: Limits
) -> ExecutionError | None:
    """Says why an execution did not come to its own end, and whether the state was kept; None if it did."""
    state = (
        "it was interrupted, the state is kept"
        if reply is not None
        else "the context was killed, the state is lost"
    )

    if stop.kind == "time_limit":
        return ExecutionError(
            kind="time_limit", name="TimeLimitExceeded", value=f"ran longer than {wall_seconds:g} s: {state}"
        )

    if stop.kind == "cpu_limit":
        value = f"used more than {limits.cpu_seconds:g} s of CPU time: {state}"
        return ExecutionError(kind="cpu_limit", name="CpuLimitExceeded", value=value)

    if reply is not None:
        if stop.kind == "interrupted":
            return ExecutionError(kind="interrupted", name="Interrupted", value=state)

        return None

    if exit_.out_of_memory:
        value = f"used more than {limits.memory_bytes:,} bytes of memory: {state}"
        return ExecutionError(kind="out_of_memory", name="OutOfMemory", value=value)

    if stop.kind == "interrupted":
        return ExecutionError(
            kind="interrupted", name="Interrupted", value=f"did not stop when asked: {state}"
        )

    value = f"the context died ({_how(exit_)}), the state is lost"
    return ExecutionError(kind="context_died", name="ContextDied", value=value)


def _how(exit_: _Exit) -> str:
    if exit_.status is None:
        return "it closed its channel"

    if exit_.status >= 0:
        return f"exit code {exit_.status}"

    try:
        return f"signal {signal.Signals(-exit_.status).name}"
    except ValueError:
        return f"signal {-exit_.status}"
