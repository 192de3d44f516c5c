"""Runs executions and questions in a context's process, one at a time, and stops them.

An execution that exceeds a limit is interrupted first and killed after a grace period; cancelling a caller interrupts
its execution, and later callers wait until the process is idle again. `why_stopped` explains how an execution ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

from fumehood import failpoints
from fumehood.cancellation import keep
from fumehood.engine.cells import CellInProgress
from fumehood.engine.clock import SandboxClock, Timer
from fumehood.engine.contexts.connection import ContextConnection, RunningExecution, dropped_by_guest
from fumehood.engine.contexts.process import ContextOwner, ContextProcess, Exit
from fumehood.engine.contexts.requests_from_guest import ToolCalls, empty_answer
from fumehood.engine.contexts.usage import Measure, Reading
from fumehood.engine.error_hints import with_hint
from fumehood.engine.host_faults import KILLED_BY_FILTER, naming_faults
from fumehood.engine.tasks import Awaited
from fumehood.errors import FumehoodError
from fumehood.values.events import ErrorEvent, Event, ExecutionStarted
from fumehood.values.execution import Changes, Execution, ExecutionError
from fumehood.values.limits import Limits, Usage
from fumehood.values.questions import Answer, Question
from fumehood.values.requests import ExecuteRequest, ToolAnswer
from fumehood.values.sandbox import ContextInfo
from fumehood.values.transcript import Transcript

# How long an execution whose context is gone waits for its exit status.
_EXIT_SECONDS = 1.0
_CPU_LOOK_SECONDS = 0.02
# Front ends do not wait longer for a completion; examined code may never return.
_ANSWER_SECONDS = 5.0
_CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
)
_CRASHED = (
    "compiled code has crashed: a library, or what was called by ctypes. Find the call with a small input, and do it "
    "in another way"
)
_GIVEN_UP = ExecutionError(
    kind="interrupted", name="Interrupted", value="it was interrupted because its caller gave up waiting"
)

Message = tuple[dict[str, Any], bytes]
_T = TypeVar("_T")


class ExecutionRunner:
    """Runs the requests of one context; callers take turns.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        info: The context.
        meter: Measures executions.
    """

    def __init__(self, sandbox: ContextOwner, info: ContextInfo, meter: Measure) -> None:
        self._sandbox = sandbox
        self._meter = meter
        self._info = info
        # The running execution, for readers of the record.
        self.underway: CellInProgress | None = None
        self._stop: Stop | None = None
        # The calls of the last execution with tools; the ids of calls tell whether an answer belongs to it.
        self._tool_calls: ToolCalls | None = None
        self._was_interrupted = False
        self._cleanup: asyncio.Task[None] | None = None

    def take_underway(self) -> CellInProgress | None:
        """Returns the running execution as readers see it; readers do not see it from now on."""
        underway, self.underway = self.underway, None
        return underway

    @property
    def is_cleaning_up(self) -> bool:
        """Whether work of a cancelled caller is still under way."""
        return self._cleanup is not None and not self._cleanup.done()

    def interrupt(self) -> bool:
        """Interrupts the running execution; returns False if there is none."""
        if self._stop is None:
            return False

        self._stop.begin("interrupted")
        return True

    def answer_tool(self, answer: ToolAnswer) -> None:
        """Answers a tool call of the running execution."""
        if self._tool_calls is not None:
            self._tool_calls.answer(answer)

    async def ask(self, process: ContextProcess, question: Question) -> Answer:
        """Sends a question to an idle process; returns an empty answer after a time-out."""
        stop = Stop(process, self._sandbox.limits.grace_seconds, self._sandbox.clock)
        asked = process.link.ask(question, self._after_interrupt())
        stop.after(_ANSWER_SECONDS, "time_limit")
        answer = await self._stoppable(asked, stop)
        return answer if answer is not None and stop.kind is None else empty_answer(question)

    async def finish_later(
        self, work: Awaitable[_T], undo: Callable[[_T], Awaitable[None]] | None = None
    ) -> None:
        """Completes the work of a cancelled caller and undoes it; discards its exceptions."""
        cleanup = keep(_finish_and_undo(asyncio.ensure_future(work), undo))
        # Other contexts wait too: files may be restored that they write to.
        self._sandbox.cleanups.add(cleanup)
        await self.delay_next(cleanup)

    async def at_rest(self) -> None:
        """Waits until the remaining work of cancelled callers is done."""
        while (cleanup := self._cleanup) is not None:
            await asyncio.wait([cleanup])

            # More may have been added meanwhile.
            if self._cleanup is cleanup:
                self._cleanup = None

    async def delay_next(self, task: asyncio.Future[Any]) -> None:
        """Blocks later callers until `task` is done; this caller does not wait while the sandbox is paused."""
        tasks = [task] if self._cleanup is None else [task, self._cleanup]
        self._cleanup = keep(_all_done(tasks))
        await self._sandbox.clock.while_going(self._cleanup)

    async def run(
        self,
        process: ContextProcess,
        request: ExecuteRequest,
        message: Message,
        emit: Callable[[Event], None],
    ) -> Execution:
        """Runs code in an idle process; emits its events, and returns the complete execution."""
        sandbox, limits = self._sandbox, self._sandbox.limits
        running, reading, transcript = self._begin(process.link, request, message, emit)
        wall_seconds = request.wall_seconds or limits.wall_seconds
        stop = Stop(process, limits.grace_seconds, sandbox.clock)
        try:
            reply = await self._reply(process, running, reading, stop, wall_seconds)
        except asyncio.CancelledError:
            # The caller was cancelled, but the code ran: it is recorded.
            if not request.silent:
                given_up = transcript.finish(usage=Usage(), error=_GIVEN_UP)
                sandbox.recorder.note_execution(self._info.id, process.link.name, request, given_up)

            raise

        for line in running.telemetry if sandbox.security.wants_telemetry else ():
            sandbox.security.note_telemetry(line, process.link.pid)

        stopped = why_stopped(stop, reply, process.exit, wall_seconds, limits, sandbox.ended_by)

        if request.transactional:
            stopped = undone(stopped)

        if stopped is not None and reply is not None:
            stopped = located(stopped, transcript.error)

        if stopped is not None:
            stopped = with_hint(stopped, sandbox.network)

        usage = self._meter.end(reading, running, request, reply)
        _emit_held_back(transcript, emit)

        if stopped is not None:
            emit(ErrorEvent(error=stopped, at_seconds=usage.wall_seconds))

        return _finished(transcript, running, usage, reply, stopped)

    def _begin(
        self,
        link: ContextConnection,
        request: ExecuteRequest,
        message: Message,
        emit: Callable[[Event], None],
    ) -> tuple[RunningExecution, Reading, Transcript]:
        """Sends the code, and prepares for its output."""
        sandbox = self._sandbox
        fields, payload = message

        with naming_faults(outcome_unknown=False):
            self._meter.open()

        # The code is sent first, so that the guest works during the preparation: no event arrives before the loop runs
        # again.
        running = link.execute({**fields, **self._after_interrupt()}, payload, emit)
        reading = self._meter.begin()
        transcript = Transcript(
            execution_id=running.id,
            context_id=self._info.id,
            limits=sandbox.limits,
            isolation=sandbox.isolation_level,
            started_at=datetime.now(UTC),
        )
        sandbox.audit.hash_pending()

        if not request.silent:
            position = sandbox.recorder.length(self._info.id)
            self.underway = CellInProgress(request, self._info.id, position, running.id, transcript)

        def record(event: Event) -> None:
            if self.underway is not None:
                self.underway.note(event)

            if isinstance(event, ErrorEvent):
                error = with_hint(event.error, sandbox.network)
                event = ErrorEvent(error=error, at_seconds=event.at_seconds)
                # The error ends the code, so output before it is delivered first.
                _emit_held_back(transcript, emit)

            passed = transcript.add(event)

            if passed is not None and not self._is_end_of_time(event):
                emit(passed)

        running.on_event = record
        emit(ExecutionStarted(execution_id=running.id, context_id=self._info.id))
        link.report_background(record)

        if request.tools:
            reply_to = partial(link.reply_to_tool, running.id)
            running.tools = self._tool_calls = ToolCalls(running.id, request.tools, reply_to, sandbox.clock)
            self._tool_calls.on_asked = partial(sandbox.audit.note_tool_call, running.id)

        return running, reading, transcript

    def _is_end_of_time(self, event: Event) -> bool:
        """Whether an event is the interrupt at a time limit.

        Such an event is dropped, because the error that names the limit follows.
        """
        return (
            isinstance(event, ErrorEvent)
            and event.error.name == _INTERRUPT
            and self._stop is not None
            and self._stop.kind in ("time_limit", "cpu_limit")
        )

    async def _reply(
        self,
        process: ContextProcess,
        running: RunningExecution,
        reading: Reading,
        stop: Stop,
        wall_seconds: float,
    ) -> dict[str, Any] | None:
        """Waits for the reply, and enforces the time limits; returns None when the context is gone."""
        limits = self._sandbox.limits
        watch = asyncio.create_task(self._watch_cpu(reading, stop)) if limits.cpu_seconds else None
        stop.after(wall_seconds, "time_limit")
        try:
            reply = await self._stoppable(running.reply, stop)

            if failpoints.armed:
                await failpoints.reach("run.replied", process)
        finally:
            if watch is not None:
                watch.cancel()

        if reply is None and process.lives:
            await self._sandbox.clock.wait(process.exited, seconds=_EXIT_SECONDS)

        return reply

    async def _stoppable(self, reply: Awaited[_T], stop: Stop) -> _T:
        """Waits for a reply; a cancellation, or `interrupt`, interrupts the process."""
        self._stop = stop
        try:
            if failpoints.armed:
                await failpoints.reach("run.sent", self)

            value = await reply.wait()
        except BaseException:
            stop.begin("interrupted")
            await self.delay_next(keep(self._until_idle(reply, stop)))
            raise

        await self._until_idle(reply, stop)
        return value

    async def _until_idle(self, reply: Awaited[Any], stop: Stop) -> None:
        """Returns when the process is idle again, and no interrupt is pending."""
        await reply.wait()
        self._stop = None
        self._was_interrupted = stop.kind is not None
        await stop.over()

    def _after_interrupt(self) -> dict[str, Any]:
        """Returns the flag for a request when an interrupt of the previous one may still be pending."""
        return {"after_interrupt": True} if self._was_interrupted else {}

    async def _watch_cpu(self, reading: Reading, stop: Stop) -> None:
        """Waits until the CPU time limit is reached; checks only at the earliest moment at which that is possible."""
        cores = os.cpu_count() or 1
        limit_seconds = self._sandbox.limits.cpu_seconds or 0.0

        while True:
            left = limit_seconds - await self._meter.cpu_seconds_since(reading)

            if left <= 0:
                stop.begin("cpu_limit")
                return

            await asyncio.sleep(max(left / cores, _CPU_LOOK_SECONDS))


def _emit_held_back(transcript: Transcript, emit: Callable[[Event], None]) -> None:
    for event in transcript.held_back():
        emit(event)


def _finished(
    transcript: Transcript,
    running: RunningExecution,
    usage: Usage,
    reply: dict[str, Any] | None,
    stopped: ExecutionError | None,
) -> Execution:
    execution = transcript.finish(
        usage=usage,
        execution_count=None if reply is None else reply["execution_count"],
        error=stopped,
        state_lost=reply is None,
        dropped_by_guest=dropped_by_guest(reply),
    )

    # Usually there is neither.
    if running.tools is not None:
        execution = replace(execution, tool_calls=running.tools.over())

    if running.variables:
        execution = replace(execution, changes=Changes(variables=running.variables))

    return execution


async def _finish_and_undo(task: asyncio.Future[_T], undo: Callable[[_T], Awaitable[None]] | None) -> None:
    """Waits for the task of a cancelled caller, and undoes it; discards exceptions."""
    with suppress(Exception):
        value = await task

        if undo is not None:
            await undo(value)


async def _all_done(tasks: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.wait(tasks)


StopKind = Literal["time_limit", "cpu_limit", "interrupted"]

_REPEAT_SECONDS = 0.25
# The exception that SIGINT raises in the code.
_INTERRUPT = "KeyboardInterrupt"
_STATE_KEPT = "the state is kept"
_STATE_LOST = "the state is lost"
# For transactional executions.
_STATE_UNDONE = "the state is as it was before"
_KEPT = f"it was interrupted, {_STATE_KEPT}"
_LOST = f"the context was killed, {_STATE_LOST}"


class Stop:
    """Stops one execution.

    Args:
        process: The process that runs it.
        grace_seconds: How many seconds after the interrupt the process is killed.
        clock: The sandbox's clock.
    """

    def __init__(self, process: ContextProcess, grace_seconds: float, clock: SandboxClock) -> None:
        self.kind: StopKind | None = None
        self._process = process
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._limit_timer: Timer | None = None
        self._signal_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._signals: list[asyncio.Task[None]] = []

    def after(self, seconds: float, kind: StopKind) -> None:
        """Stops the execution after a time."""
        self._limit_timer = self._clock.call_later(seconds, self.begin, kind)

    def begin(self, kind: StopKind) -> None:
        """Sends the interrupt; only the first reason is kept."""
        if self.kind is not None:
            return

        self.kind = kind
        self._kill_timer = self._clock.call_later(self._grace_seconds, lambda: keep(self._process.end()))
        self._interrupt()

    async def over(self) -> None:
        """Ends the timers; returns when no interrupt is pending any more that could hit the next execution."""
        for timer in (self._limit_timer, self._signal_timer, self._kill_timer):
            if timer is not None:
                timer.cancel()

        if self._signals:
            await asyncio.wait(self._signals)

    def _interrupt(self) -> None:
        """Interrupts repeatedly: CPython can miss a signal that arrives just before a blocking call."""
        self._signals.append(keep(self._process.send_signal(signal.SIGINT)))
        self._signal_timer = self._clock.call_later(_REPEAT_SECONDS, self._interrupt)


def why_stopped(
    stop: Stop,
    reply: dict[str, Any] | None,
    exit_: Exit,
    wall_seconds: float,
    limits: Limits,
    ended: FumehoodError | None = None,
) -> ExecutionError | None:
    """Returns why an execution was stopped, and whether the state was kept; None if it ended by itself.

    Args:
        stop: Whether and how the execution was stopped from outside.
        reply: The last message of the guest, or None when the context is gone.
        exit_: How the process of the context ended.
        wall_seconds: The time limit of the execution.
        limits: The limits of the sandbox.
        ended: Why the whole sandbox was ended; None if it was not.
    """
    state = _KEPT if reply is not None else _LOST

    if stop.kind == "time_limit":
        value = f"ran longer than {wall_seconds:g} s: {state}"
        return ExecutionError(kind="time_limit", name="TimeLimitExceeded", value=value)

    if stop.kind == "cpu_limit":
        value = f"used more than {limits.cpu_seconds:g} s of CPU time: {state}"
        return ExecutionError(kind="cpu_limit", name="CpuLimitExceeded", value=value)

    if reply is None and exit_.out_of_memory:
        value = f"used more than {limits.memory_bytes:,} bytes of memory: {state}"
        return ExecutionError(kind="out_of_memory", name="OutOfMemory", value=value)

    if stop.kind == "interrupted":
        value = state if reply is not None else f"did not stop when asked: {state}"
        return ExecutionError(kind="interrupted", name="Interrupted", value=value)

    if reply is not None:
        return None

    if ended is not None:
        value = f"{ended.message}; {_STATE_LOST}"
        return ExecutionError(kind="context_died", name="SandboxEnded", value=value, hint=ended.hint)

    value = f"the context died ({_how(exit_)}), {_STATE_LOST}"
    hint = KILLED_BY_FILTER if exit_.status == -signal.SIGSYS else ""

    if exit_.status is not None and -exit_.status in _CRASHES:
        hint = _CRASHED

    return ExecutionError(kind="context_died", name="ContextDied", value=value, hint=hint)


def located(stopped: ExecutionError, reported: ExecutionError | None) -> ExecutionError:
    """Returns the error of a stopped execution, with the place that the code has reported.

    Args:
        stopped: Why it was stopped.
        reported: The error of the code itself when it was interrupted; None if it reported none.
    """
    if reported is None or not reported.traceback:
        return stopped

    last_line = f"{stopped.name}: {stopped.value}"

    if reported.name != _INTERRUPT:
        # The code caught the interrupt, and raised another error.
        return replace(stopped, traceback=f"{reported.traceback}\n\n{last_line}")

    lines = reported.traceback.split("\n")
    heading = next((at for at, line in enumerate(lines[:2]) if line.startswith(f"{_INTERRUPT} ")), None)

    if heading is not None:
        lines[heading] = lines[heading].replace(_INTERRUPT, stopped.name, 1)

    if lines[-1].startswith(_INTERRUPT):
        lines[-1] = last_line
    else:
        lines += ["", last_line]

    return replace(stopped, traceback="\n".join(lines))


def has_exited(error: ExecutionError, *, status: int) -> bool:
    """Whether an execution ended because its code exited the process with this exit code."""
    return error.kind == "context_died" and f"({_how(Exit(status=status))})" in error.value


def undone(error: ExecutionError | None) -> ExecutionError | None:
    """Returns the error of a transactional execution, whose text says that the state is unchanged."""
    if error is None:
        return None

    value = error.value.replace(_STATE_KEPT, _STATE_UNDONE).replace(_STATE_LOST, _STATE_UNDONE)
    return replace(error, value=value)


def _how(exit_: Exit) -> str:
    if exit_.status is None:
        return "it closed its channel"

    if exit_.status >= 0:
        return f"exit code {exit_.status}"

    try:
        return f"signal {signal.Signals(-exit_.status).name}"
    except ValueError:
        return f"signal {-exit_.status}"
