"""A context as the API has it: one id, one language, one execution at a time, whatever happens to its process.

Runs in the host process, on the engine's loop. Executions are queued in order. One that exceeds a limit is
interrupted first and killed after a grace; a context that dies is replaced by a fresh one, and the execution
says that the state is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fumehood.backends.questions import Answer, CommMessage, Question
from fumehood.backends.requests import ExecuteRequest
from fumehood.backends.tool_requests import ToolAnswer
from fumehood.changes import Changes
from fumehood.errors import ContextNotFoundError, InvalidArgumentError
from fumehood.events import ErrorEvent, Event, ExecutionStarted
from fumehood.execution import Execution, ExecutionError
from fumehood.host.asking import empty_answer
from fumehood.host.awaited import Awaited
from fumehood.host.checkpoint_line import CheckpointLine, RevivedContext
from fumehood.host.context_link import ContextLink, Running
from fumehood.host.context_process import ContextHost, ContextProcess, Exit, keep, new_link
from fumehood.host.execute_message import dropped_by_guest, wire_request
from fumehood.host.measuring import Reading
from fumehood.host.recording import ContextRecorder
from fumehood.host.stopping import Stop, undone, why_stopped
from fumehood.host.tool_calls import ToolCalls
from fumehood.limits import Usage
from fumehood.models import ContextInfo
from fumehood.runtimes.base import GuestContext
from fumehood.transcript import Transcript

# How long an execution whose context is gone waits to hear how it ended.
_EXIT_SECONDS = 1.0
_CPU_LOOK_SECONDS = 0.02
# A checkpoint that has not forked by then is stopped, or damaged.
_REVIVE_SECONDS = 10.0
# A front end does not wait longer for a completion; code that a name leads to may never answer.
_ANSWER_SECONDS = 5.0
_GIVEN_UP = ExecutionError(
    kind="interrupted", name="Interrupted", value="it was interrupted because its caller gave up waiting"
)

_T = TypeVar("_T")


class LiveContext:
    """One context of a sandbox."""

    def __init__(self, host: ContextHost, info: ContextInfo) -> None:
        self.info = info
        self._host = host
        self._process: ContextProcess | None = None
        self._starting: asyncio.Task[ContextProcess] | None = None
        self._turn = asyncio.Lock()
        self._stop: Stop | None = None
        # Of the last execution that had tools; their names tell whether it is the one that is meant.
        self._tool_calls: ToolCalls | None = None
        self._was_interrupted = False
        self._farewell: asyncio.Task[None] | None = None
        self.record = ContextRecorder(host.recorder, info.id)
        self._closed = False
        self._is_removed = False
        # By the names of its processes' conversations.
        self._counts: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """True while something runs or waits to run."""
        return self._turn.locked() or (self._farewell is not None and not self._farewell.done())

    def adopt(self, link: ContextLink, guest: GuestContext) -> None:
        """Takes over a process that is forked already; `start` waits until it is ready."""
        self._note_count()
        self._process = ContextProcess(self._host, self.info, link, guest)
        self._starting = asyncio.create_task(self._ready(self._process))
        # Read once: a process that dies before anybody waits for it is no fault of the loop's.
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _note_count(self) -> None:
        """No execution may ever be named as one before it, whatever process runs it."""
        if self._process is not None:
            link = self._process.link
            self._counts[link.name] = max(link.count, self._counts.get(link.name, 0))

    async def start(self) -> None:
        """Starts the process unless it lives; returns when it is ready."""
        await self._living_process()

    async def settled(self) -> None:
        """Returns when no process of it is about to start."""
        if self._starting is not None:
            await asyncio.wait([self._starting])

    async def execute(
        self, request: ExecuteRequest, emit: Callable[[Event], None], comm: CommMessage | None = None
    ) -> Execution:
        """Runs code after what was asked before; emits what happens, and returns everything once more.

        With a comm message it is the handlers of that message that run, as the request says.
        """
        if request.tools and self.info.language != "python":
            raise InvalidArgumentError(field="tools", value=self.info.language, allowed="a context of Python")

        fields, payload = wire_request(request, comm, self._host.limits)

        async with self._turn:
            await self._at_rest()
            process = await self._living_process()

            def run(living: ContextProcess) -> Awaitable[Execution]:
                return self._run(living, request, (fields, payload), emit)

            if request.transactional:
                execution = await self._host.transactions.carry_out(self, process, request, run, emit)
            elif request.tell_changes:
                execution = await self._host.transactions.observe(self, process, run)
            else:
                execution = await run(process)

            if not request.silent:
                self.record.note(process, request, execution)

            return execution

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[ContextProcess]:
        """Keeps everybody else waiting, and gives the process, which is at rest and ready."""
        async with self._turn:
            await self._at_rest()
            yield await self._living_process()

    @asynccontextmanager
    async def turn_alone(self) -> AsyncIterator[None]:
        """Keeps everybody else waiting; whether it has a process does not matter."""
        async with self._turn:
            await self._at_rest()
            yield

    async def finish(
        self, work: Awaitable[_T], if_given_up: Callable[[_T], Awaitable[None]] | None = None
    ) -> _T:
        """For who holds the turn: does something that may not be left half-way.

        Whoever gives up waiting for it hears so when it is done; who gives up on a paused sandbox at once, and then
        whoever comes next waits.

        Args:
            work: What is to be done.
            if_given_up: Undoes it when nobody waits for it any more.
        """
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.leave(task, if_given_up)
            raise

    async def leave(
        self, work: Awaitable[_T], if_given_up: Callable[[_T], Awaitable[None]] | None = None
    ) -> None:
        """For who has given up, and holds the turn: does what `finish` does, and what fails, nobody hears."""
        self._farewell = keep(_outlive(asyncio.ensure_future(work), if_given_up, self._farewell))
        await self._host.clock.while_going(self._farewell)

    async def revive_within_turn(
        self, line: CheckpointLine, name: str, put_files_back: Callable[[int], Awaitable[None]]
    ) -> bool:
        """For who holds the turn: goes on from a checkpoint, in the place of whatever this context is now.

        Args:
            line: The checkpoint.
            name: Under which that knows its executions.
            put_files_back: Does so, while the process with this number inside waits; what it raises leaves everything
                as it is.

        Returns:
            False when there is no such checkpoint any more; then nothing has changed.

        Raises:
            ContextStartError: The files are back, and the process has ended before it was ready.
        """
        self._check_not_removed()
        self._note_count()
        link = new_link(self._host.limits, self._host.broken, name, self._counts.get(name, 0))
        try:
            asked = asyncio.ensure_future(line.revive(link))
            await self._host.clock.wait(asked, seconds=_REVIVE_SECONDS)
            guest = asked.result() if asked.done() else None

            if guest is None:
                asked.cancel()
                link.close()
                return False

            await put_files_back(guest.pid)
            await self._end_process()
            self._check_not_removed()
        except BaseException:
            link.close()
            # It ends when its channel does; one that does not is killed.
            asked.add_done_callback(_kill_what_was_made)
            asked.cancel()
            raise

        self._closed = False
        self.adopt(link, guest)
        link.proceed()
        await self._living_process()
        return True

    async def begin_anew(self, in_between: Callable[[], Awaitable[None]]) -> None:
        """For who holds the turn: replaces the process by a fresh one; what is done in between nobody disturbs."""
        await self._end_process()
        await in_between()
        await self._living_process()

    async def answer(self, question: Question) -> Answer:
        """Asks the process after what was asked before; without an answer in time it is the empty one."""
        async with self._turn:
            await self._at_rest()
            process = await self._living_process()
            stop = Stop(process, self._host.limits.grace_seconds, self._host.clock)
            asked = process.link.ask(question, self._after_interrupt())
            stop.after(_ANSWER_SECONDS, "time_limit")
            answer = await self._stoppable(asked, stop)
            return answer if answer is not None and stop.kind is None else empty_answer(question)

    def interrupt(self) -> bool:
        """Interrupts what runs; false if nothing does."""
        if self._stop is None:
            return False

        self._stop.begin("interrupted")
        return True

    def answer_input(self, execution_id: str, request_id: str, text: str | None) -> None:
        """Answers a question of the running execution."""
        if self._process is not None:
            self._process.link.answer_input(execution_id, request_id, text)

    def answer_tool(self, answer: ToolAnswer) -> None:
        """Answers a call of a tool that the running execution makes."""
        if self._tool_calls is not None:
            self._tool_calls.answer(answer)

    async def replace(self) -> None:
        """Kills the process and starts a fresh one; what ran is told that its context died."""
        await self.kill()
        self._closed = False
        await self.start()

    async def remove(self) -> None:
        """Kills the process, and no other will take its place."""
        self._is_removed = True
        await self.kill()

    async def kill(self) -> None:
        """Kills the process with all that it started."""
        self._closed = True

        if self._process is not None:
            await self._process.end()

    def close(self) -> None:
        """The sandbox has ended: lets go of everything."""
        self._closed = True

        if self._process is not None:
            self._process.close(Exit())

    # -- the process

    async def _living_process(self) -> ContextProcess:
        if self._starting is not None and not self._starting.done():
            return await asyncio.shield(self._starting)

        if self._process is not None and self._process.lives:
            return self._process

        self._check_not_removed()
        # A paused sandbox starts nothing: what comes into it now would run.
        await self._host.clock.going()
        return await asyncio.shield(self._start())

    def _start(self) -> asyncio.Task[ContextProcess]:
        link = new_link(self._host.limits, self._host.broken)
        self.adopt(link, self._host.start_context(link, self.info))
        assert self._starting is not None, "adopt has just set it"
        return self._starting

    async def _end_process(self) -> None:
        """Returns when it has none; who restarts the context at the same time may have started one meanwhile."""
        while self._process is not None and (self._process.lives or not self._has_settled):
            await self.settled()
            await self._process.end()

    @property
    def _has_settled(self) -> bool:
        return self._starting is None or self._starting.done()

    def _check_not_removed(self) -> None:
        if self._is_removed:
            raise ContextNotFoundError(context_id=self.info.id)

    async def _ready(self, process: ContextProcess) -> ContextProcess:
        await process.until_ready()
        return process

    # -- one execution

    async def _run(
        self,
        process: ContextProcess,
        request: ExecuteRequest,
        message: tuple[dict[str, Any], bytes],
        emit: Callable[[Event], None],
    ) -> Execution:
        host, limits, link = self._host, self._host.limits, process.link
        fields, payload = message

        host.meter.open()
        # First of all, so that the guest works while the rest is made ready.
        running = link.execute({**fields, **self._after_interrupt()}, payload, lambda event: record(event))
        reading = host.meter.begin()
        transcript = Transcript(
            execution_id=running.id,
            context_id=self.info.id,
            limits=limits,
            isolation=host.isolation_level,
            started_at=datetime.now(UTC),
        )

        def record(event: Event) -> None:
            passed = transcript.add(event)

            if passed is not None:
                emit(passed)

        emit(ExecutionStarted(execution_id=running.id, context_id=self.info.id))
        link.report_background(record)

        if request.tools:
            reply_to = partial(link.reply_to_tool, running.id)
            running.tools = self._tool_calls = ToolCalls(running.id, request.tools, reply_to, host.clock)

        wall_seconds = request.wall_seconds or limits.wall_seconds
        stop = Stop(process, limits.grace_seconds, host.clock)
        try:
            reply = await self._reply(process, running, reading, stop, wall_seconds)
        except asyncio.CancelledError:
            # Its caller has gone, and still it ran: the record says so.
            if not request.silent:
                self.record.note(process, request, transcript.finish(usage=Usage(), error=_GIVEN_UP))

            raise

        stopped = why_stopped(stop, reply, process.exit, wall_seconds, limits)

        if request.transactional:
            stopped = undone(stopped)

        execution = transcript.finish(
            usage=host.meter.end(reading, running, request, reply),
            execution_count=None if reply is None else reply["execution_count"],
            error=stopped,
            state_lost=reply is None,
            dropped_by_guest=dropped_by_guest(reply),
        )

        if running.tools is not None:
            execution = replace(execution, tool_calls=running.tools.over())

        if stopped is not None:
            emit(ErrorEvent(error=stopped, at_seconds=execution.usage.wall_seconds))

        if running.variables:
            execution = replace(execution, changes=Changes(variables=running.variables))

        if reply is None and not self._closed and not host.clock.is_stopped and not request.transactional:
            # The next execution should not have to wait for the replacement.
            self._start()

        return execution

    async def _reply(
        self, process: ContextProcess, running: Running, reading: Reading, stop: Stop, wall_seconds: float
    ) -> dict[str, Any] | None:
        """Waits for the reply, and sees to the limits of time; None when the context is gone."""
        limits = self._host.limits
        watch = asyncio.create_task(self._watch_cpu(reading, stop)) if limits.cpu_seconds else None
        stop.after(wall_seconds, "time_limit")
        try:
            reply = await self._stoppable(running.reply, stop)
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
            value = await reply.wait()
        except asyncio.CancelledError:
            stop.begin("interrupted")
            self._farewell = keep(self._see_off(reply, stop))
            # Who gives up on a paused sandbox does not wait for it; who comes next does.
            await self._host.clock.while_going(self._farewell)
            raise

        await self._see_off(reply, stop)
        return value

    async def _see_off(self, reply: Awaited[Any], stop: Stop) -> None:
        """Returns when the process is at rest again, and no interrupt is on its way."""
        await reply.wait()
        self._stop = None
        self._was_interrupted = stop.kind is not None
        await stop.over()

    async def _at_rest(self) -> None:
        """Waits for what somebody before has given up."""
        if self._farewell is not None:
            await asyncio.wait([self._farewell])
            self._farewell = None

    def _after_interrupt(self) -> dict[str, Any]:
        """What a request must say when an interrupt of the one before may still be on its way."""
        return {"after_interrupt": True} if self._was_interrupted else {}

    async def _watch_cpu(self, reading: Reading, stop: Stop) -> None:
        """Looks when the limit can have been reached at the earliest, and again, until it is."""
        cores = os.cpu_count() or 1
        limit_seconds = self._host.limits.cpu_seconds or 0.0

        while True:
            left = limit_seconds - await self._host.meter.cpu_seconds_since(reading)

            if left <= 0:
                stop.begin("cpu_limit")
                return

            await asyncio.sleep(max(left / cores, _CPU_LOOK_SECONDS))


async def _outlive(
    task: asyncio.Future[_T],
    if_given_up: Callable[[_T], Awaitable[None]] | None,
    before: asyncio.Task[None] | None,
) -> None:
    """Waits for what nobody waits for any more, and undoes it; what fails there, nobody hears."""
    with suppress(Exception):
        value = await task

        if if_given_up is not None:
            await if_given_up(value)

    if before is not None:
        await asyncio.wait([before])


def _kill_what_was_made(asked: asyncio.Future[RevivedContext | None]) -> None:
    guest = None if asked.cancelled() or asked.exception() else asked.result()

    if guest is not None:
        guest.kill()
