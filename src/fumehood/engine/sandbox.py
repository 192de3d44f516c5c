"""One living sandbox: its guest, the client of its init, its contexts, commands, files and watches.

It is the only place that records when and why the sandbox has ended; every method of an ended one raises
`SandboxClosedError`. A guest that violates the protocol is killed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from fumehood import failpoints
from fumehood.cancellation import keep, when_done
from fumehood.egress.gateway import Route
from fumehood.egress.route import BUNDLE_PATH, prepare_route
from fumehood.engine.audit_trail import AuditTrail
from fumehood.engine.clock import Idleness, SandboxClock
from fumehood.engine.commands import LiveProcesses
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.contexts.contexts import LiveContexts, default_context
from fumehood.engine.contexts.process import ContextStartError, new_link
from fumehood.engine.contexts.usage import LiveMetrics, Meter
from fumehood.engine.egress import LiveEgress, route_envs
from fumehood.engine.feed import Feed
from fumehood.engine.files import LiveFiles, one_piece
from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.engine.loop_share import LoopShare
from fumehood.engine.pause import Pausing
from fumehood.engine.ports import LivePorts
from fumehood.engine.records import Recorder
from fumehood.engine.security_events import SecurityMonitor
from fumehood.engine.served_ports import ServedPorts
from fumehood.engine.tasks import PendingCleanups
from fumehood.engine.time_travel.checkpoints import LiveCheckpoints
from fumehood.engine.time_travel.judge import Judge
from fumehood.engine.time_travel.placeholder import end_processes, reduce_to_init
from fumehood.engine.time_travel.transactions import Transactions
from fumehood.engine.watches import LiveWatches
from fumehood.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    EndReason,
    FumehoodError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxStartError,
    reason_of,
)
from fumehood.log import events
from fumehood.log.request_ids import request_id
from fumehood.runtimes.base import ContextLaunch, Guest, GuestContext
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution, Record
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.languages import ProgramSteps
from fumehood.values.limits import Limits
from fumehood.values.network import EgressRecord, Network
from fumehood.values.plain_data import as_data
from fumehood.values.questions import Answer, CommMessage, Question
from fumehood.values.requests import (
    CheckpointCall,
    CommitAnswer,
    ContextCall,
    CreateContext,
    ExecuteRequest,
    InputAnswer,
    RemoveContext,
    RestartContext,
    RollBack,
    TakeCheckpoint,
    ToolAnswer,
    WatchFiles,
)
from fumehood.values.sandbox import CheckpointInfo, ContextInfo, FileChange, Metrics
from fumehood.values.security import SecurityEvent
from fumehood_wire.frames import ProtocolError

_T = TypeVar("_T")

_CONTEXT_EVENTS: Mapping[type, str] = {
    CreateContext: "context_made",
    RestartContext: "context_restarted",
    RemoveContext: "context_removed",
}
_NO_CONTEXT = "the sandbox goes on: mend what is named, or remove this context and make another"
_REHEARSAL = ExecuteRequest(code="print(end='')\n0", silent=True)


class SandboxLaunch:
    """The host's part of a sandbox before its guest is made: its id, and the descriptors of its first context.

    Args:
        sandbox_id: Its id.
        limits: Its limits.
        envs: Environment variables of every process in it.
        template_name: The name of its template.
        own_interpreter: Whether it shares its interpreter with its forks only.
        workdir: The folder in which code and commands start.

    Attributes:
        languages: The languages that its template was made ready for, with their versions.
        forked: Describes the first context of a fork; None: the default context.
    """

    def __init__(
        self,
        sandbox_id: str,
        limits: Limits,
        envs: dict[str, str],
        *,
        template_name: str = "default",
        own_interpreter: bool = False,
        workdir: str = HOME_PATH,
    ) -> None:
        self.workdir = workdir
        self.sandbox_id = sandbox_id
        self.template_name = template_name
        self.own_interpreter = own_interpreter
        self.languages: Mapping[str, str] = {}
        self.forked: ContextInfo | None = None
        self.limits = limits
        self.envs = envs
        self.on_broken: Callable[[ProtocolError], None] = lambda _: None
        self.link: ContextConnection | None = None
        self.share = LoopShare()

    def first_context(self) -> ContextLaunch:
        """Makes the launch data of the first context."""
        self.link = new_link(self.limits, lambda error: self.on_broken(error), self.share)
        return ContextLaunch(fds=self.link.guest_fds(), info=default_context(self.workdir), envs=self.envs)

    def abandon(self) -> None:
        """Closes the connection; for the case that no guest was made."""
        if self.link is not None:
            self.link.close()


class LiveSandbox:
    """One living sandbox.

    Args:
        launching: The host's part that was made before the guest.
        guest: The runtime's object.
        on_end: Called once when no process of it is left.
    """

    def __init__(self, launching: SandboxLaunch, guest: Guest, on_end: Callable[[LiveSandbox], None]) -> None:
        envs = launching.envs
        limits = launching.limits
        assert launching.link is not None, "a guest was made without its first context"
        launching.on_broken = self.broken
        self.id = launching.sandbox_id
        self.limits = limits
        self.workdir = launching.workdir
        self.guest = guest
        self.isolation_level = guest.isolation.level
        self.template_name = launching.template_name
        self.own_interpreter = launching.own_interpreter
        self.languages = launching.languages
        self.end_reason: EndReason | None = None
        # The request that has ended it, if one has.
        self.ended_by_request = ""
        self.envs = envs
        self.given_envs: Mapping[str, str] = {}
        self._on_end = on_end
        self._breach: ProtocolError | None = None
        self._oom_kills = 0
        self._memory_killed: set[int] = set()
        self.clock = SandboxClock()
        self.cleanups = PendingCleanups(self.clock)
        self._idleness = Idleness(self.clock)
        self.share = launching.share
        self.init = InitClient(guest.socket, self._event, self._init_closed, self.share)
        self.pausing = Pausing(self, self.init.ask)
        self._reducing: asyncio.Task[None] | None = None
        self.meter = Meter(guest, self._asked_cpu_seconds, self.clock)
        self._watches = LiveWatches(self.ask, self._check_alive)
        self.files = LiveFiles(self.ask, guest.allow_uploaded)
        self.processes = LiveProcesses(self.ask, limits, envs, self.clock, self._idleness, self.share)
        self.processes.workdir = self.workdir
        self.ports = LivePorts(self.id, self.ask, self.touch, self._check_now)
        self.served_ports = ServedPorts(self.init.ask, self._check_now, self.broken)
        self.checkpoints = LiveCheckpoints(self)
        self.transactions = Transactions(self.checkpoints)
        self._judge = Judge(self, self.checkpoints)
        self.recorder = Recorder()
        self.feed = Feed()
        self.audit = AuditTrail()
        ask_figures = partial(self.init.ask, "metrics", with_memory=False)
        self.security = SecurityMonitor(self, self.audit, self.pausing.pause, ask_figures)
        self._metrics = LiveMetrics(guest, self.ask, self.security, self.clock)
        guest.on_refused = self.security.note_refused_call
        guest.on_excess = partial(self.end, "excess")
        self.security.on_reported = self._feed_security
        self.egress = LiveEgress(self.id, self.init.ask, self.broken, self._note_egress)
        self.contexts = LiveContexts(self, self.files.start_folder, self.workdir, launching.forked)
        self.contexts.first.attach(launching.link, guest.first_context)
        when_done(guest.ended, self._ended)

    @property
    def alive(self) -> bool:
        """Whether the end of the sandbox has not begun."""
        return self.end_reason is None

    @property
    def end_cause(self) -> tuple[str, str | None]:
        """The reason of the end; for a protocol violation, the broken rule."""
        if self._breach is not None:
            return "protocol_violation", self._breach.code

        if self.end_reason == "died" and (self._memory_killed or self.guest.oom_kills() > self._oom_kills):
            return "out_of_memory", None

        return self.end_reason or "died", None

    @property
    def idle_seconds(self) -> float:
        """The seconds without use; 0 while code runs in a context, or another call is under way."""
        return 0.0 if self.contexts.busy else self._idleness.seconds

    def touch(self) -> None:
        """Records a use."""
        self._idleness.touch()

    async def prepare_pause(self) -> None:
        """Waits until no context is being started, and saves the figures that cannot be read while it is paused."""
        for context in self.contexts:
            await context.settled()

        await self._metrics.remember()

    async def end_processes(self) -> None:
        """Ends every process in the sandbox but init.

        Its files stay, and each context gets a new process at its next use.

        Raises:
            SandboxError: A process does not end.
        """
        for checkpoint in self.checkpoints.infos:
            await self.checkpoints.drop(checkpoint.id)

        await end_processes(self.guest, self.init)

        for context in self.contexts:
            await context.settled(has_ended=True)

    async def prepare(self) -> None:
        """Waits until the default context is ready, so that the first call need not wait for it."""
        try:
            await self.contexts.first.start()
        except (ContextStartError, InitError, InitGoneError) as error:
            self.end("died")
            raise SandboxStartError(
                step="start the default context", reason=str(error), logged=reason_of(error)
            ) from None

    async def rehearse(self) -> None:
        """Runs an empty cell, so that the pages that every cell writes to are copied before a user waits."""
        await self.contexts.first.execute(_REHEARSAL, lambda _: None)

    async def assign(self, limits: Limits, envs: dict[str, str]) -> None:
        """Hands a prepared sandbox out, with the limits and environment of its caller."""
        changed_memory = limits.memory_bytes != self.limits.memory_bytes
        self.limits = limits
        self.guest.apply(limits)
        self.processes.assign(limits, envs)
        self._metrics.begin()
        self.touch()

        if changed_memory:
            await self.ask("show_memory", memory_bytes=limits.memory_bytes)

        if envs != self.envs:
            self.envs = envs
            await self._guarded(self.contexts.first.replace())

    def rename(self, sandbox_id: str) -> None:
        """Changes its id, when it replaces the sandbox that it was forked from."""
        self.id = sandbox_id
        self.ports.rename(sandbox_id)
        self.egress.rename(sandbox_id)

    async def use_route(self, route: Route) -> None:
        """Applies a network route."""
        self.guest.check_network(route.network)

        if route.bundle is not None:
            await self.files.write(BUNDLE_PATH, one_piece(route.bundle))

        self.egress.use(route)

    @property
    def network(self) -> Network:
        """What it can reach now."""
        return self.egress.route.network

    async def set_network(self, network: Network) -> None:
        """Changes the network."""
        self._check_alive()
        self.touch()
        route = await prepare_route(network, self.egress.route)
        await self.use_route(route)
        # Commands started from now on see it; running ones keep their environment.
        envs = route_envs(route)
        self.envs = {**self.envs, **envs}
        self.processes.add_envs(envs)

    def end(self, reason: EndReason) -> None:
        """Begins to end the sandbox; `guest.ended` is done when no process is left."""
        if self.end_reason is None:
            self.end_reason = reason

            # A timer has the context of the request that has set it.
            if reason == "killed":
                self.ended_by_request = request_id()

        if self._reducing is not None:
            return

        if self.guest.carries_forks:
            self._reducing = keep(reduce_to_init(self.guest, self.init))
            return

        self.guest.kill()
        self.init.close()

    # -- calls

    async def execute(
        self, request: ExecuteRequest, emit: Callable[[Event], None], comm: CommMessage | None = None
    ) -> Execution:
        """Runs code, or the handlers of a comm message."""
        self._check_alive()
        context = self.contexts.for_request(request)
        self.touch()
        try:
            execution = await context.execute(request, emit, comm)
        except (ContextStartError, InitError, InitGoneError) as error:
            self._check_alive(outcome_unknown=True)
            raise SandboxStartError(
                step="start a context",
                reason=str(error) or type(error).__name__,
                hint=_NO_CONTEXT,
                logged=reason_of(error),
            ) from None
        except (CheckpointError, SandboxClosedError) as error:
            self._log_checkpoint_fault(error)
            # The code that detected the end does not know whether the request was begun before it.
            self._check_alive(outcome_unknown=True)
            raise
        finally:
            self.touch()

        if execution.error is not None and execution.error.kind != "exception":
            events.EXECUTION_STOPPED.log(
                sandbox_id=self.id,
                context_id=execution.context_id,
                execution_id=execution.id,
                reason=execution.error.kind,
                state_lost=execution.state_lost or None,
            )

        if execution.state_lost or self.end_reason == "policy":
            # Init reports the end of a context before its own, which is the better explanation. And the result of a
            # sandbox that a rule has ended is not returned, even if it was complete before the kill.
            await asyncio.sleep(0)
            self._check_alive(outcome_unknown=True)

        if failpoints.armed:
            await failpoints.reach("run.finished", self)

        emit(ExecutionFinished(execution=execution))
        return execution

    async def ask_context(self, question: Question) -> Answer:
        """Asks a context about code."""
        self._check_alive()
        self.touch()
        answer = await self._guarded(self.contexts.named(question.context_id).answer(question))
        # There is no valid answer if the context violated the protocol or ended.
        self._check_now()
        self.touch()
        return answer

    async def answer_input(self, answer: InputAnswer) -> None:
        """Answers an input request."""
        self._check_alive()

        for context in self.contexts:
            context.answer_input(answer.execution_id, answer.request_id, answer.text)

    async def answer_commit(self, answer: CommitAnswer) -> None:
        """Answers the commit request of a transactional execution."""
        self._check_alive()
        self.transactions.decide(answer.execution_id, answer.commit)

    async def answer_tool(self, answer: ToolAnswer) -> None:
        """Answers a tool call."""
        self._check_alive()

        for context in self.contexts:
            context.answer_tool(answer)

    async def interrupt(self, context_id: str | None) -> bool:
        """Interrupts the running execution."""
        self._check_alive()
        return self.contexts.interrupt(context_id)

    async def context_call(self, call: ContextCall) -> tuple[ContextInfo, ...]:
        """Creates, lists, restarts or removes contexts."""
        self._check_alive()
        self.touch()

        done = await self._guarded(self.contexts.call(call))

        if self.feed.is_live and (kind := _CONTEXT_EVENTS.get(type(call))) is not None:
            name = done[0].id if done else getattr(call, "context_id", "")
            self.feed.put(kind, {"context_id": name})

        return done

    async def record(self, context_id: str | None) -> Record:
        """Returns the record of a context."""
        self._check_alive()
        return self.recorder.read(self.id, self.contexts.named(context_id).info)

    async def checkpoint_call(self, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        """Makes, lists, rolls back to or drops checkpoints."""
        self._check_alive()
        self.touch()
        before = {info.id for info in self.checkpoints.infos} if self.feed.is_live else set()
        try:
            done = await self._guarded(self.checkpoints.call(call, self.contexts.named))
        except FumehoodError as error:
            self._log_checkpoint_fault(error)
            raise

        if self.feed.is_live:
            self._feed_checkpoint(call, done, before)

        self.touch()
        return done

    def _feed_checkpoint(
        self, call: CheckpointCall, done: tuple[CheckpointInfo, ...], before: set[str]
    ) -> None:
        if isinstance(call, TakeCheckpoint):
            self.feed.put("checkpoint_made", {"checkpoint": as_data(done[0])})
        elif isinstance(call, RollBack):
            self.feed.put("checkpoint_rolled_back", {"checkpoint": as_data(done[0])})

        # A new checkpoint may displace an old one.
        for name in sorted(before - {info.id for info in self.checkpoints.infos}):
            self.feed.put("checkpoint_dropped", {"checkpoint_id": name})

    def _feed_security(self, event: SecurityEvent) -> None:
        if self.feed.is_live:
            self.feed.put("security_event", {"event": as_data(event)}, len(event.detail))

    def _note_egress(self, record: EgressRecord) -> None:
        self.security.note_egress(record)

        if self.feed.is_live:
            self.feed.put("egress", {"record": as_data(record)})

    async def judge(self, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Runs one program with many inputs."""
        self._check_alive()
        self.guest.check_checkpoints()

        with self._idleness.during_call():
            return await self._guarded(self._judge.run(request))

    async def watch(self, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        """Begins to watch a directory."""
        return await self._watches.begin(request)

    async def settle_watch(self, name: str) -> int:
        """Waits until a watch has reported all changes so far; returns their number."""
        return await self._watches.settle(name)

    async def metrics(self) -> Metrics:
        """Returns the present usage."""
        return await self._metrics.read()

    async def ask(self, verb: str, payload: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        """Sends a request to init on behalf of the user."""
        self._check_alive()
        try:
            with self._idleness.during_call():
                return await self.init.ask(verb, payload, **arguments)
        except InitGoneError:
            self._check_alive(outcome_unknown=True)
            raise

    # -- for contexts

    @property
    def ended_by(self) -> FumehoodError | None:
        """Why the sandbox was ended from outside; None if it lives or died by itself."""
        return self.closed_error() if self.end_reason not in (None, "died") else None

    def start_context(
        self, link: ContextConnection, info: ContextInfo, steps: ProgramSteps | None
    ) -> GuestContext:
        """Starts a context process, forked by the zygote, that communicates over the link."""
        launching = ContextLaunch(fds=link.guest_fds(), info=info, envs=self.envs, steps=steps)
        return self.guest.start_context(launching)

    async def signal_context(self, pid: int, number: int) -> None:
        """Signals the process group of the context with this pid inside; does nothing if it has ended."""
        try:
            await self.init.ask("signal_context", pid=pid, signal=int(number))
        except (InitError, InitGoneError):
            return

    async def kill_context(self, pid: int) -> None:
        """Kills the context with this pid inside and all that it started, except the processes of checkpoints."""
        try:
            await self.init.ask("kill_context", pid=pid, spare=self.checkpoints.pids())
        except (InitError, InitGoneError):
            return

    def was_out_of_memory(self, pid: int | None) -> bool:
        """Whether the kernel, since the last call, or the watcher inside killed a process because memory ran out."""
        self.init.catch_up()
        kills = self.guest.oom_kills()
        happened = kills > self._oom_kills or pid in self._memory_killed
        self._oom_kills = kills

        if pid is not None:
            self._memory_killed.discard(pid)

        return happened

    def broken(self, error: ProtocolError) -> None:
        """Ends the sandbox, because the guest violated the protocol."""
        self._breach = self._breach or error
        self.end("died")

    def end_unkillable(self) -> None:
        """Ends the sandbox, because a context cannot be killed."""
        self.end("died")

    # -- inside

    def _log_checkpoint_fault(self, error: FumehoodError) -> None:
        # A checkpoint that does not exist is a mistake of the caller; the end of a sandbox is logged elsewhere.
        if isinstance(error, CheckpointError) and not isinstance(error, CheckpointNotFoundError):
            events.CHECKPOINT_FAILED.log(sandbox_id=self.id, code=error.code, reason=error.log_reason)

    async def _guarded(self, work: Awaitable[_T]) -> _T:
        try:
            return await work
        except (InitGoneError, CheckpointError, SandboxClosedError):
            self._check_alive(outcome_unknown=True)
            raise
        except ContextStartError as error:
            self._check_alive(outcome_unknown=True)
            raise SandboxStartError(
                step="start a context", reason=str(error), hint=_NO_CONTEXT, logged=reason_of(error)
            ) from None

    def _event(self, header: dict[str, Any], _payload: bytes) -> None:
        match header["event"]:
            case "process_exit":
                code = header.get("exit_code")
                self.processes.note_exit(header["pid"], 128 + header["signal"] if code is None else code)
            case "memory_kill":
                self._memory_killed.add(header["pid"])
            case "egress":
                self.egress.note_open(header["connection_id"])
            case "arrival":
                self.served_ports.note_arrival(header["port"], header["connection_id"])
            case "watch":
                self._watches.note(header)

    async def _asked_cpu_seconds(self) -> float:
        value, _ = await self.init.ask("metrics", with_memory=False)
        return float(value["cpu_seconds"])

    def _init_closed(self, error: ProtocolError | None) -> None:
        if error is not None:
            self._breach = self._breach or error

        self.end("died")

    def _ended(self) -> None:
        if self.end_reason is None:
            self.end_reason = "died"

        # In reverse order, and completely: an exception of one step must not prevent the others.
        with ExitStack() as closing:
            closing.callback(self.feed.close, self.end_cause[0])
            closing.callback(self._on_end, self)
            closing.callback(self.security.end, self.end_reason, str(self._breach or ""))
            closing.callback(self._watches.close)
            closing.callback(self.init.close)
            closing.callback(self.egress.close)
            closing.callback(self.checkpoints.close)
            closing.callback(self.ports.close, self.make_closed_error(outcome_unknown=True))
            closing.callback(self.served_ports.close, self.make_closed_error(outcome_unknown=True))
            closing.callback(self.processes.close, self.make_closed_error(outcome_unknown=True))

            for context in self.contexts:
                closing.callback(context.close)

            failpoints.reach_sync("delete.closing", self)

    def _check_now(self) -> None:
        """Raises if the sandbox has ended, even if init's last message was not handled yet."""
        self.init.catch_up()
        self._check_alive(outcome_unknown=True)

    def _check_alive(self, *, outcome_unknown: bool = False) -> None:
        if self.end_reason is None:
            return

        raise self.closed_error(outcome_unknown=outcome_unknown)

    def closed_error(self, *, outcome_unknown: bool = False) -> FumehoodError:
        """Returns the error that every method raises once this sandbox has ended."""
        return self.make_closed_error(outcome_unknown=outcome_unknown)()

    def make_closed_error(self, *, outcome_unknown: bool = False) -> Callable[[], FumehoodError]:
        """Returns a function that makes that error for each caller, and holds no reference to the sandbox."""
        if self._breach is not None:
            return partial(
                ProtocolViolationError, sandbox_id=self.id, rule=self._breach.code, detail=self._breach.detail
            )

        return partial(
            SandboxClosedError,
            sandbox_id=self.id,
            reason=self.end_reason or "died",
            outcome_unknown=outcome_unknown,
        )
