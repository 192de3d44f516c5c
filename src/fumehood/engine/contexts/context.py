"""A context as in the API: one id, one language, one execution at a time, across its processes.

Executions are queued in order. One that exceeds a limit is interrupted first and killed after a grace period; a context
that dies is replaced by a fresh one, and the execution reports that the state is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fumehood import failpoints
from fumehood.cancellation import consume_result, wait_shared
from fumehood.engine.cells import CellInProgress, LastVariables
from fumehood.engine.contexts.audited_executions import begin_execution
from fumehood.engine.contexts.checkpoint_channel import CheckpointChannel
from fumehood.engine.contexts.connection import ContextConnection, wire_request
from fumehood.engine.contexts.process import ContextOwner, ContextProcess
from fumehood.engine.contexts.processes import ContextProcesses
from fumehood.engine.contexts.runner import ExecutionRunner
from fumehood.engine.contexts.usage import Measure
from fumehood.engine.execution_events import feed_abandoned_end, feed_end, feeding
from fumehood.engine.host_faults import naming_faults
from fumehood.errors import InvalidArgumentError
from fumehood.runtimes.base import GuestContext
from fumehood.values.events import Event
from fumehood.values.execution import Execution
from fumehood.values.languages import ProgramSteps, known_language, names_with
from fumehood.values.questions import Answer, CommMessage, Question
from fumehood.values.requests import ExecuteRequest, ToolAnswer
from fumehood.values.sandbox import ContextInfo

_T = TypeVar("_T")


class LiveContext:
    """One context of a sandbox.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        info: Its id, language and directory.
        meter: Measures its executions; None: the sandbox's own.
        steps: How each cell is turned into a whole program; None: as usual for its language.
    """

    def __init__(
        self,
        sandbox: ContextOwner,
        info: ContextInfo,
        meter: Measure | None = None,
        steps: ProgramSteps | None = None,
    ) -> None:
        self.info = info
        self._sandbox = sandbox
        # Its variables when they were last seen.
        self.seen: LastVariables | None = None
        self._turn = asyncio.Lock()
        self._processes = ContextProcesses(sandbox, info, steps)
        self._runner = ExecutionRunner(sandbox, info, meter or sandbox.meter)

    @property
    def busy(self) -> bool:
        """Whether an execution runs or is queued."""
        return self._turn.locked() or self._runner.is_cleaning_up

    @property
    def underway(self) -> CellInProgress | None:
        """The execution that is under way, unless it is a silent one."""
        return self._runner.underway

    @property
    def is_begun(self) -> bool:
        """Whether the context has a live process."""
        return self._processes.process_lives

    @property
    def conversation(self) -> str | None:
        """The prefix of the execution ids, shared with the processes that this one was forked from.

        None without a process.
        """
        return self._processes.process.link.name if self._processes.process is not None else None

    def count_of(self, name: str) -> int:
        """Returns the number of executions so far whose ids begin with this conversation's name."""
        return self._processes.count_of(name)

    def attach(self, link: ContextConnection, guest: GuestContext) -> None:
        """Takes over a process that is forked already; `start` waits until it is ready."""
        self._processes.attach(link, guest)

    @property
    def coming(self) -> asyncio.Task[ContextProcess]:
        """A future that is done when the process attached last is ready; it fails if that process ends before."""
        return self._processes.coming

    async def start(self) -> None:
        """Starts the process unless it lives; returns when it is ready."""
        await self._processes.living()

    async def settled(self, *, has_ended: bool = False) -> None:
        """Waits until no process of the context is being started.

        With `has_ended`, init has killed the process: waits until its end is known.
        """
        await (self._processes.gone() if has_ended else self._processes.settled())

    async def execute(
        self, request: ExecuteRequest, emit: Callable[[Event], None], comm: CommMessage | None = None
    ) -> Execution:
        """Runs code after earlier requests; emits its events, and returns the complete execution.

        With a comm message, the handlers of that message run instead of code.
        """
        if request.tools and not known_language(self.info.language).has_tools:
            allowed = f"a context of {names_with(tools=True)}"
            raise InvalidArgumentError(field="tools", value=self.info.language, allowed=allowed)

        async with self._turn:
            await self._runner.at_rest()
            return await self.execute_within_turn(request, emit, comm)

    async def execute_within_turn(
        self, request: ExecuteRequest, emit: Callable[[Event], None], comm: CommMessage | None = None
    ) -> Execution:
        """Like `execute`, for a caller that holds the turn."""
        wants_telemetry = self._sandbox.security.wants_telemetry and self.info.language == "python"
        message = wire_request(request, comm, self._sandbox.limits, telemetry=wants_telemetry)

        with naming_faults(outcome_unknown=False):
            if failpoints.armed:
                await failpoints.reach("run.turn", self)

            process = await self._processes.living()

            if failpoints.armed:
                await failpoints.reach("run.ready", self)

        audited = await begin_execution(self._sandbox, self.info, request, comm)
        emit = emit if request.silent else feeding(self._sandbox.feed, self._runner, emit)

        def run(living: ContextProcess) -> Awaitable[Execution]:
            return self._runner.run(living, request, message, emit)

        try:
            if request.transactional:
                execution = await self._sandbox.transactions.carry_out(self, process, request, run, emit)
            elif request.tell_changes:
                execution = await self._sandbox.transactions.observe(self, process, run)
            else:
                execution = await run(process)
        except BaseException as error:
            feed_abandoned_end(self._sandbox.feed, self._sandbox.recorder, self._runner.take_underway())
            audited.failed(error)
            raise

        execution = audited.ended(execution)
        underway = self._runner.take_underway()

        if not request.silent:
            self._sandbox.recorder.note_execution(self.info.id, process.link.name, request, execution)

        if underway is not None and self._sandbox.feed.is_live:
            feed_end(self._sandbox.feed, execution, underway.position)

        if execution.state_lost:
            self._processes.prepare_next()

        return execution

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[ContextProcess]:
        """Blocks other callers, and yields the process, which is idle and ready."""
        async with self._turn:
            await self._runner.at_rest()
            yield await self._processes.living()

    @asynccontextmanager
    async def turn_alone(self) -> AsyncIterator[None]:
        """Blocks other callers, whether or not there is a process."""
        async with self._turn:
            await self._runner.at_rest()
            yield

    async def finish(self, work: Awaitable[_T], undo: Callable[[_T], Awaitable[None]] | None = None) -> _T:
        """Runs work that must not be interrupted halfway, for the holder of the turn.

        A cancellation is raised when the work is done. On a paused sandbox it is raised at once, and later callers wait
        for the work, unlike in `cancellation.finish`, which would wait for the end of the pause.

        Args:
            work: The work.
            undo: Undoes the work if its caller was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            return await wait_shared(task)
        except asyncio.CancelledError:
            await self.finish_later(task, undo)
            raise

    async def finish_later(
        self, work: Awaitable[_T], undo: Callable[[_T], Awaitable[None]] | None = None
    ) -> None:
        """Does the same as `finish` for a cancelled holder of the turn, and discards exceptions of the work."""
        await self._runner.finish_later(work, undo)

    async def revive_within_turn(
        self, line: CheckpointChannel, name: str, put_files_back: Callable[[int], Awaitable[None]]
    ) -> bool:
        """Replaces the process by one made from a checkpoint, for the holder of the turn; False if it is gone."""
        return await self._processes.revive(line, name, put_files_back)

    async def begin_anew(self, in_between: Callable[[], Awaitable[None]]) -> None:
        """Replaces the process by a fresh one, for the holder of the turn; runs `in_between` before it starts."""
        await self._processes.begin_anew(in_between)

    async def answer(self, question: Question) -> Answer:
        """Sends a question after earlier requests; returns an empty answer after a time-out."""
        async with self.turn() as process:
            return await self._runner.ask(process, question)

    def interrupt(self) -> bool:
        """Interrupts the running execution; returns False if there is none."""
        return self._runner.interrupt()

    def answer_input(self, execution_id: str, request_id: str, text: str | None) -> None:
        """Answers an input request of the running execution."""
        if self._processes.process is not None:
            self._processes.process.link.answer_input(execution_id, request_id, text)

        if self.underway is not None:
            self.underway.note_answer(request_id)

    def answer_tool(self, answer: ToolAnswer) -> None:
        """Answers a tool call of the running execution."""
        self._runner.answer_tool(answer)

    async def replace(self) -> None:
        """Kills the process and starts a fresh one; a running execution ends as `context_died`.

        Later callers wait for the fresh process, also when this caller is cancelled.
        """
        replacing = asyncio.ensure_future(self._processes.replace())
        consume_result(replacing)
        await self._runner.delay_next(replacing)
        await wait_shared(replacing)

    async def remove(self) -> None:
        """Kills the process for good."""
        await self._processes.remove()

    async def kill(self) -> None:
        """Kills the process and all processes that it started."""
        await self._processes.kill()

    def close(self) -> None:
        """Releases everything, after the end of the sandbox."""
        self._processes.close()
