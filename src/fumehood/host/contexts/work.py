"""What the process of a context works on: one execution or question at a time, and how that is stopped.

Runs in the host process, on the engine's loop. An execution that exceeds a limit is interrupted first and killed
after a grace; who gives up waiting interrupts, and whoever comes next waits until the process is at rest again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fumehood import failpoints
from fumehood.backends.questions import Answer, Question
from fumehood.backends.requests import ExecuteRequest
from fumehood.backends.tool_requests import ToolAnswer
from fumehood.changes import Changes
from fumehood.events import ErrorEvent, Event, ExecutionStarted
from fumehood.execution import Execution, ExecutionError
from fumehood.host.awaited import Awaited
from fumehood.host.contexts.asking import empty_answer
from fumehood.host.contexts.execute_message import dropped_by_guest
from fumehood.host.contexts.link import ContextLink, Running
from fumehood.host.contexts.process import ContextHost, ContextProcess
from fumehood.host.contexts.stopping import Stop, located, undone, why_stopped
from fumehood.host.contexts.tool_calls import ToolCalls
from fumehood.host.exhaustion import naming_faults
from fumehood.host.measuring import Measure, Reading
from fumehood.host.recording import ContextRecorder
from fumehood.host.unawaited import keep
from fumehood.limits import Usage
from fumehood.models import ContextInfo
from fumehood.transcript import Transcript

# How long an execution whose context is gone waits to hear how it ended.
_EXIT_SECONDS = 1.0
_CPU_LOOK_SECONDS = 0.02
# A front end does not wait longer for a completion; code that a name leads to may never answer.
_ANSWER_SECONDS = 5.0
_GIVEN_UP = ExecutionError(
    kind="interrupted", name="Interrupted", value="it was interrupted because its caller gave up waiting"
)

Message = tuple[dict[str, Any], bytes]
_T = TypeVar("_T")


class ContextWork:
    """The work of one context; its callers take turns.

    Args:
        host: The sandbox.
        info: The context.
        record: Where it is noted.
        meter: Measures it.
    """

    def __init__(self, host: ContextHost, info: ContextInfo, record: ContextRecorder, meter: Measure) -> None:
        self._host = host
        self._meter = meter
        self._info = info
        self._record = record
        self._stop: Stop | None = None
        # Of the last execution that had tools; their names tell whether it is the one that is meant.
        self._tool_calls: ToolCalls | None = None
        self._was_interrupted = False
        self._farewell: asyncio.Task[None] | None = None

    @property
    def is_given_up(self) -> bool:
        """True while something goes on that nobody waits for any more."""
        return self._farewell is not None and not self._farewell.done()

    def interrupt(self) -> bool:
        """Interrupts what runs; false if nothing does."""
        if self._stop is None:
            return False

        self._stop.begin("interrupted")
        return True

    def answer_tool(self, answer: ToolAnswer) -> None:
        """Answers a call of a tool that the running execution makes."""
        if self._tool_calls is not None:
            self._tool_calls.answer(answer)

    async def ask(self, process: ContextProcess, question: Question) -> Answer:
        """Asks a process at rest; without an answer in time it is the empty one."""
        stop = Stop(process, self._host.limits.grace_seconds, self._host.clock)
        asked = process.link.ask(question, self._after_interrupt())
        stop.after(_ANSWER_SECONDS, "time_limit")
        answer = await self._stoppable(asked, stop)
        return answer if answer is not None and stop.kind is None else empty_answer(question)

    async def leave(
        self, work: Awaitable[_T], if_given_up: Callable[[_T], Awaitable[None]] | None = None
    ) -> None:
        """For whoever has given up: sees something to its end, and undoes it; nobody hears what fails there."""
        farewell = keep(_outlive(asyncio.ensure_future(work), if_given_up))
        # Not only here: files may be put back that others write to.
        self._host.farewells.add(farewell)
        await self.hold_back(farewell)

    async def at_rest(self) -> None:
        """Waits for what somebody before has given up."""
        while (farewell := self._farewell) is not None:
            await asyncio.wait([farewell])

            # Meanwhile there may be more of it.
            if self._farewell is farewell:
                self._farewell = None

    async def hold_back(self, task: asyncio.Future[Any]) -> None:
        """Has whoever comes next wait until something is done, however; on a paused sandbox this caller does not."""
        tasks = [task] if self._farewell is None else [task, self._farewell]
        self._farewell = keep(_all_done(tasks))
        await self._host.clock.while_going(self._farewell)

    async def run(
        self,
        process: ContextProcess,
        request: ExecuteRequest,
        message: Message,
        emit: Callable[[Event], None],
    ) -> Execution:
        """Runs code in a process at rest; emits what happens, and returns everything once more."""
        host, limits = self._host, self._host.limits
        running, reading, transcript = self._begin(process.link, request, message, emit)
        wall_seconds = request.wall_seconds or limits.wall_seconds
        stop = Stop(process, limits.grace_seconds, host.clock)
        try:
            reply = await self._reply(process, running, reading, stop, wall_seconds)
        except asyncio.CancelledError:
            # Its caller has gone, and still it ran: the record says so.
            if not request.silent:
                self._record.note(
                    process.link.name, request, transcript.finish(usage=Usage(), error=_GIVEN_UP)
                )

            raise

        for line in running.telemetry if host.security.wants_telemetry else ():
            host.security.note_telemetry(line, process.link.pid)

        stopped = why_stopped(stop, reply, process.exit, wall_seconds, limits, host.ended_by)

        if request.transactional:
            stopped = undone(stopped)

        if stopped is not None and reply is not None:
            stopped = located(stopped, transcript.error)

        usage = self._meter.end(reading, running, request, reply)
        _emit_held_back(transcript, emit)

        if stopped is not None:
            emit(ErrorEvent(error=stopped, at_seconds=usage.wall_seconds))

        return _finished(transcript, running, usage, reply, stopped)

    def _begin(
        self, link: ContextLink, request: ExecuteRequest, message: Message, emit: Callable[[Event], None]
    ) -> tuple[Running, Reading, Transcript]:
        """Sends the code, and makes what its output is to meet."""
        host = self._host
        fields, payload = message

        with naming_faults(outcome_unknown=False):
            self._meter.open()

        # First of all, so that the guest works while the rest is made ready: nothing comes before the loop runs again.
        running = link.execute({**fields, **self._after_interrupt()}, payload, emit)
        reading = self._meter.begin()
        transcript = Transcript(
            execution_id=running.id,
            context_id=self._info.id,
            limits=host.limits,
            isolation=host.isolation_level,
            started_at=datetime.now(UTC),
        )
        host.audit.settle()

        def record(event: Event) -> None:
            if isinstance(event, ErrorEvent):
                # It is the end of the code: what was printed before it comes first.
                _emit_held_back(transcript, emit)

            passed = transcript.add(event)

            if passed is not None:
                emit(passed)

        running.on_event = record
        emit(ExecutionStarted(execution_id=running.id, context_id=self._info.id))
        link.report_background(record)

        if request.tools:
            reply_to = partial(link.reply_to_tool, running.id)
            running.tools = self._tool_calls = ToolCalls(running.id, request.tools, reply_to, host.clock)
            self._tool_calls.on_asked = partial(host.audit.note_tool_call, running.id)

        return running, reading, transcript

    async def _reply(
        self, process: ContextProcess, running: Running, reading: Reading, stop: Stop, wall_seconds: float
    ) -> dict[str, Any] | None:
        """Waits for the reply, and sees to the limits of time; None when the context is gone."""
        limits = self._host.limits
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
            await self._host.clock.wait(process.exited, seconds=_EXIT_SECONDS)

        return reply

    async def _stoppable(self, reply: Awaited[_T], stop: Stop) -> _T:
        """Waits for a reply; who gives up waiting, or calls `interrupt`, has the process interrupted."""
        self._stop = stop
        try:
            if failpoints.armed:
                await failpoints.reach("run.sent", self)

            value = await reply.wait()
        except BaseException:
            stop.begin("interrupted")
            await self.hold_back(keep(self._see_off(reply, stop)))
            raise

        await self._see_off(reply, stop)
        return value

    async def _see_off(self, reply: Awaited[Any], stop: Stop) -> None:
        """Returns when the process is at rest again, and no interrupt is on its way."""
        await reply.wait()
        self._stop = None
        self._was_interrupted = stop.kind is not None
        await stop.over()

    def _after_interrupt(self) -> dict[str, Any]:
        """What a request must say when an interrupt of the one before may still be on its way."""
        return {"after_interrupt": True} if self._was_interrupted else {}

    async def _watch_cpu(self, reading: Reading, stop: Stop) -> None:
        """Looks when the limit can have been reached at the earliest, and again, until it is."""
        cores = os.cpu_count() or 1
        limit_seconds = self._host.limits.cpu_seconds or 0.0

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
    running: Running,
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

    # Most often there is neither.
    if running.tools is not None:
        execution = replace(execution, tool_calls=running.tools.over())

    if running.variables:
        execution = replace(execution, changes=Changes(variables=running.variables))

    return execution


async def _outlive(task: asyncio.Future[_T], if_given_up: Callable[[_T], Awaitable[None]] | None) -> None:
    """Waits for what nobody waits for any more, and undoes it; what fails there, nobody hears."""
    with suppress(Exception):
        value = await task

        if if_given_up is not None:
            await if_given_up(value)


async def _all_done(tasks: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.wait(tasks)
