"""The local backend: sandboxes that live in this process, kept by a supervisor on the engine's loop.

Its methods may be awaited from any asyncio loop: the work is always done on the engine's loop, in a thread of its own,
so that limits are enforced even while the caller's loop is blocked. It must add no behaviour to the supervisor's. The
module also holds the event queue between an execution and a slow reader, and saving and loading as far as they need the
engine.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fumehood.bounds import SLOW_READER_BYTES
from fumehood.cancellation import cancel_and_wait, complete_or_undo, keep, wait_shared, when_done
from fumehood.engine import audited_verbs
from fumehood.engine.host_faults import naming_faults
from fumehood.engine.looking import answer_look
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.supervisor import Supervisor
from fumehood.errors import FumehoodError, RecordNotFoundError, SlowReaderError
from fumehood.port.backend import Backend, ByteStream
from fumehood.port.loop_bound import DistantStream, LoopBound
from fumehood.port.record_keeping import RecordKeeping
from fumehood.templates.recipe import SkippedModule
from fumehood.values.audit import AuditLog
from fumehood.values.checks import check_metadata
from fumehood.values.events import Event, ExecutionFinished, StderrEvent, StdoutEvent, event_bytes
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.languages import NAMED_CONTEXTS
from fumehood.values.limits import Limits
from fumehood.values.looking import ListSandboxes, Look, ReadFamily, SandboxList
from fumehood.values.network import EgressRecord, Network
from fumehood.values.questions import Answer, CommMessage, Question
from fumehood.values.requests import (
    CheckpointCall,
    CommitAnswer,
    ContextCall,
    ExecuteRequest,
    FileCall,
    Forked,
    ForkRequest,
    InputAnswer,
    ListFiles,
    Loaded,
    LoadRequest,
    ProcessCall,
    ProcessEvent,
    ProcessSpec,
    ReadFile,
    SandboxSpec,
    ToolAnswer,
    WatchFiles,
)
from fumehood.values.sandbox import (
    Capacity,
    CheckpointInfo,
    ContextInfo,
    FileChange,
    FileInfo,
    Isolation,
    Metrics,
    PortAddress,
    ProcessInfo,
    SandboxInfo,
)
from fumehood.values.security import SecurityEvent
from fumehood.values.stateless import StatelessReply, StatelessRequest
from fumehood.values.watching import WatchEvents

if TYPE_CHECKING:
    from fumehood.engine.kept_records import KeptRecords
    from fumehood.engine.sandbox import LiveSandbox


_MAX_MERGED_CHARACTERS = 1 << 16


async def followed(
    limits: Limits, execute: Callable[[Callable[[Event], None]], Coroutine[Any, Any, Execution]]
) -> AsyncGenerator[Event, None]:
    """Yields the events of an execution; cancels it when the reader falls too far behind.

    Raises:
        SlowReaderError: Too much was queued; the queued events are yielded first.
    """
    max_bytes = SLOW_READER_BYTES + limits.stdout_bytes + limits.stderr_bytes
    events = _EventQueue(max_bytes, lambda: task.cancel())
    task = asyncio.create_task(execute(events.put))
    when_done(task, events.close)
    try:
        while (event := await events.get()) is not None:
            yield event

            if isinstance(event, ExecutionFinished):
                break

        if events.is_too_full:
            raise SlowReaderError(maximum=max_bytes)

        # Raises the execution's exception: the sandbox has failed, or has ended.
        await task
    finally:
        # The context is idle again when it has ended.
        await cancel_and_wait(task)


class _EventQueue:
    """A queue of events for a slow reader: adjacent chunks of one stream are merged.

    Args:
        max_bytes: How many bytes may be queued; further events are dropped.
        on_too_full: Called once, when the bound is exceeded.
    """

    def __init__(self, max_bytes: int, on_too_full: Callable[[], object]) -> None:
        self.is_too_full = False
        self._max_bytes = max_bytes
        self._on_too_full = on_too_full
        self._events: deque[Event] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        if self.is_too_full:
            return

        merged = _merged(self._events[-1], event) if self._events else None

        if merged is not None:
            self._waiting_bytes -= event_bytes(self._events.pop())
            event = merged

        self._events.append(event)
        self._waiting_bytes += event_bytes(event)
        self._news.set()

        if self._waiting_bytes > self._max_bytes and not isinstance(event, ExecutionFinished):
            self.is_too_full = True
            self._on_too_full()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def get(self) -> Event | None:
        while not self._events:
            if self._closed:
                return None

            self._news.clear()
            await self._news.wait()

        event = self._events.popleft()
        self._waiting_bytes -= event_bytes(event)
        return event


def _merged(last: Event, event: Event) -> Event | None:
    """Returns the two chunks as one, if they belong to the same stream and are not too long."""
    if isinstance(event, StdoutEvent) and isinstance(last, StdoutEvent) and _fits(last.text, event.text):
        return StdoutEvent(text=last.text + event.text, at_seconds=last.at_seconds)

    if isinstance(event, StderrEvent) and isinstance(last, StderrEvent) and _fits(last.text, event.text):
        return StderrEvent(text=last.text + event.text, at_seconds=last.at_seconds)

    return None


def _fits(text: str, more: str) -> bool:
    return len(text) + len(more) <= _MAX_MERGED_CHARACTERS


async def _remember(sandbox: LiveSandbox, context_id: str, record: Record) -> None:
    """Begins the record of a context with the saved one."""
    contexts = sandbox.contexts
    context = contexts.named(None, context_id) if context_id in NAMED_CONTEXTS else contexts.named(context_id)
    # Saved states do not contain the state of bash contexts.
    is_loaded = context.info.language == "python"
    sandbox.recorder.begin_with(context.info.id, record, is_loaded=is_loaded)


_P = ParamSpec("_P")
_T = TypeVar("_T")


class LocalBackend(LoopBound, Backend, RecordKeeping):
    """Sandboxes in this process.

    Args:
        supervisor: Manages the sandboxes; all its work is done on `loop`.
        loop: The engine's loop, which runs in a thread of its own.
    """

    def __init__(self, supervisor: Supervisor, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._supervisor = supervisor

    async def wait_warm(self, template: str = "default") -> None:
        """Returns when the template's pool of ready sandboxes is full."""
        await self._do(self._supervisor.wait_warm, template)

    async def warm(self) -> None:
        """Fills the pool of the default template.

        Retries after failures, and returns when the pool has been full once.
        """
        if (kept := self._supervisor.kept) is not None:
            await self._do(self._later, kept.start)

        await self._do(self._supervisor.warmth.reach)

    async def isolation(self) -> Isolation | None:
        """Returns what isolates the sandboxes that are made here; None before the first one."""
        return await self._do(self._isolation)

    async def _isolation(self) -> Isolation | None:
        return self._supervisor.isolation

    async def left_out(self, template: str) -> tuple[SkippedModule, ...]:
        """Returns the modules of a template's preload list that are not preloaded."""
        return await self._do(self._supervisor.templates.left_out, template)

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        return await self._handed_out(lambda: self._supervisor.create(spec), lambda info: (info,))

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        async def fork() -> Forked:
            await self._supervisor.awake(sandbox_id)
            # A context that is forking needs a message to proceed: the fork is completed, and then undone.
            return await complete_or_undo(self._supervisor.fork(sandbox_id, request), self._undo_forks)

        return await self._handed_out(fork, lambda forked: forked.items)

    def _undo_forks(self, forked: Forked) -> None:
        for info in forked.items:
            keep(self._end(info.id))

    async def _end(self, sandbox_id: str) -> None:
        await self._supervisor.kill(sandbox_id, wait=False)

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        return await self._do(self._supervisor.adopt, sandbox_id, child_id)

    async def _handed_out(
        self, make: Callable[[], Awaitable[_T]], sandboxes: Callable[[_T], tuple[SandboxInfo, ...]]
    ) -> _T:
        """Makes sandboxes, and ends them if the caller is cancelled before it receives them."""

        async def work() -> _T:
            # If this fails, no sandbox has been made.
            with naming_faults(outcome_unknown=False):
                return await make()

        async def end(made: _T) -> None:
            for info in sandboxes(made):
                await self._end(info.id)

        return await self._do_or_undo(work, end)

    async def info(self, sandbox_id: str) -> SandboxInfo:
        return await self._do(self._later, self._supervisor.info, sandbox_id)

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        return await self._do(self._later, self._supervisor.list, owner)

    async def page(self, request: ListSandboxes) -> SandboxList:
        return await self._do(self._later, self._supervisor.page, request)

    async def look(self, sandbox_id: str, request: Look[_T]) -> _T:
        async def look() -> Any:
            if isinstance(request, ReadFamily):
                return self._supervisor.family(sandbox_id)

            return await answer_look(self._supervisor.find(sandbox_id), request)

        answer: _T = await self._do(look)
        return answer

    async def find_records(self, request: ListRecords) -> RecordList:
        if (kept := self._supervisor.kept) is None:
            return RecordList(is_kept=False)

        return await self._do(kept.page, request)

    async def ended_sandbox(self, sandbox_id: str) -> EndedSandbox:
        return await self._do(self._kept(sandbox_id).about, sandbox_id)

    async def look_back(self, sandbox_id: str, request: Look[_T]) -> _T:
        answer: _T = await self._do(self._kept(sandbox_id).look, sandbox_id, request)
        return answer

    async def kept_record(self, sandbox_id: str, context_id: str | None = None) -> Record:
        return await self._do(self._kept(sandbox_id).record, sandbox_id, context_id)

    async def kept_audit(self, sandbox_id: str) -> AuditLog:
        return await self._do(self._kept(sandbox_id).audit, sandbox_id)

    async def delete_record(self, sandbox_id: str) -> None:
        await self._do(self._kept(sandbox_id).delete, sandbox_id)

    def _kept(self, sandbox_id: str) -> KeptRecords:
        if (kept := self._supervisor.kept) is None:
            raise RecordNotFoundError(sandbox_id=sandbox_id)

        return kept

    async def capacity(self) -> Capacity:
        return await self._do(self._later, self._supervisor.capacity)

    async def set_cut_off(self, is_cut_off: Callable[[], bool]) -> None:
        """Sets the function that returns whether this host is cut off: its sandboxes may be restored elsewhere then."""
        await self._do(self._later, self._supervisor.set_cut_off, is_cut_off)

    async def end_restorable(self) -> int:
        """Ends the sandboxes that are restored elsewhere when this host is lost; returns how many."""
        return await self._do(self._later, self._supervisor.end_restorable)

    async def set_draining(self, is_draining: bool) -> None:
        """Stops making new sandboxes, other than forks, or allows it again."""
        await self._do(self._later, self._supervisor.set_draining, is_draining)

    async def owners(self) -> Counter[str]:
        """Returns how many living sandboxes each owner has."""
        return await self._do(self._later, self._supervisor.owners)

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        return await self._do(self._supervisor.kill, sandbox_id, wait=wait)

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        await self._do(self._later, self._supervisor.set_timeout, sandbox_id, timeout_seconds)

    async def set_labels(self, sandbox_id: str, changes: Mapping[str, str | None]) -> None:
        await self._do(self._later, self._supervisor.set_labels, sandbox_id, changes)

    async def pause(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        return await self._do(self._supervisor.pause, sandbox_id, files_only=files_only)

    async def resume(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        return await self._do(self._supervisor.resume, sandbox_id, files_only=files_only)

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        await self._with(sandbox_id, lambda sandbox: audited_verbs.set_network(sandbox, network))
        await self._do(self._later, self._supervisor.note_network, sandbox_id)

    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        return await self._do(self._later, lambda: self._supervisor.find(sandbox_id).egress.records)

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        return await self._do(self._later, self._audit_log, sandbox_id)

    def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        return self._items(lambda: self._later(lambda: self._supervisor.find(sandbox_id).security.follow()))

    def watch_events(self, sandbox_id: str, after: int | None = None) -> AsyncGenerator[WatchEvents, None]:
        return self._items(lambda: self._later(lambda: self._supervisor.find(sandbox_id).feed.follow(after)))

    def watch_sandboxes(
        self, owner: str | None = None, after: int | None = None
    ) -> AsyncGenerator[WatchEvents, None]:
        return self._items(lambda: self._later(self._supervisor.watch, owner, after))

    async def metrics(self, sandbox_id: str) -> Metrics:
        return await self._do(lambda: self._supervisor.find(sandbox_id).metrics())

    def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        return self._stream(
            sandbox_id, lambda sandbox: followed(sandbox.limits, lambda emit: sandbox.execute(request, emit))
        )

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        do = self._with_cleanup if request.transactional else self._with
        return await do(sandbox_id, lambda sandbox: sandbox.execute(request, _unheard))

    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        await self._with(sandbox_id, lambda sandbox: sandbox.answer_input(answer))

    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        await self._do(lambda: self._supervisor.find(sandbox_id).answer_tool(answer))

    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        return await self._with(sandbox_id, lambda sandbox: sandbox.interrupt(context_id))

    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        return await self._with(sandbox_id, lambda sandbox: audited_verbs.call_contexts(sandbox, call))

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        return await self._with_cleanup(sandbox_id, lambda sandbox: audited_verbs.judge(sandbox, request))

    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        # Imported late, as below: only saving loads the archive writer.
        from fumehood.engine.consistent_snapshot import ConsistentSnapshot
        from fumehood.saved.save import pack

        async def begin() -> AsyncGenerator[bytes, None]:
            sandbox = await self._supervisor.awake(sandbox_id)
            return pack(self, sandbox_id, ConsistentSnapshot(sandbox))

        return self._items(begin)

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        from fumehood.saved.restore import unpack

        async def remember(sandbox_id: str, context_id: str, record: Record) -> None:
            await self._with(sandbox_id, lambda sandbox: _remember(sandbox, context_id, record))

        return await unpack(self, request, archive, remember)

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        # The host holds it: a paused sandbox stays paused.
        return await self._do(lambda: self._supervisor.find(sandbox_id).record(context_id))

    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        await self._with(sandbox_id, lambda sandbox: sandbox.answer_commit(answer))

    async def checkpoint_call(self, sandbox_id: str, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        return await self._with(sandbox_id, lambda sandbox: audited_verbs.call_checkpoints(sandbox, call))

    def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        return self._stream(
            sandbox_id,
            lambda sandbox: audited_verbs.read_file(sandbox, request),
            may_resume=not request.share,
        )

    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> FileInfo:
        check_metadata(metadata or {})
        failed: list[Exception] = []
        own = _noting(chunks, failed)
        pieces = own if self._is_here() else self._pulled(own, asyncio.get_running_loop())
        try:
            return await self._with(
                sandbox_id, lambda sandbox: audited_verbs.write_file(sandbox, path, pieces, metadata)
            )
        except FumehoodError:
            # An exception of the caller's own source is raised unchanged.
            if failed:
                raise failed[0] from None

            raise

    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        may_resume = not (isinstance(call, ListFiles) and call.share)
        return await self._with(
            sandbox_id, lambda sandbox: audited_verbs.call_files(sandbox, call), may_resume=may_resume
        )

    async def watch(self, sandbox_id: str, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        changes = await self._with(sandbox_id, lambda sandbox: sandbox.watch(request))
        return self._items(lambda: self._later(lambda: changes))

    async def settle_watch(self, sandbox_id: str, name: str) -> int:
        return await self._with(sandbox_id, lambda sandbox: sandbox.settle_watch(name))

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        return await self._with(sandbox_id, lambda sandbox: audited_verbs.start_process(sandbox, spec))

    def process_output(
        self, sandbox_id: str, pid: int, after_bytes: int | None = None
    ) -> AsyncGenerator[ProcessEvent, None]:
        return self._stream(sandbox_id, lambda sandbox: sandbox.processes.output(pid, after_bytes))

    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        return await self._with(sandbox_id, lambda sandbox: sandbox.processes.call(call))

    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        return await self._with(sandbox_id, lambda sandbox: sandbox.ask_context(question))

    def send_comm(
        self, sandbox_id: str, message: CommMessage, context_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        request = ExecuteRequest(code="", context_id=context_id, silent=True)
        return self._stream(
            sandbox_id,
            lambda sandbox: followed(sandbox.limits, lambda emit: sandbox.execute(request, emit, message)),
        )

    async def open_port(self, sandbox_id: str, port: int) -> ByteStream:
        async def connect() -> ByteStream:
            return await (await self._supervisor.awake(sandbox_id)).ports.open(port)

        stream = await self._do_or_undo(connect, lambda opened: opened.close())
        return stream if self._is_here() else DistantStream(stream, self._do)

    async def listen_port(self, sandbox_id: str, port: int) -> None:
        await self._do(lambda: self._supervisor.find(sandbox_id).served_ports.listen(port))

    async def accept_port(self, sandbox_id: str, port: int) -> ByteStream:
        async def accept() -> ByteStream:
            return await self._supervisor.find(sandbox_id).served_ports.accept(port)

        stream = await self._do_or_undo(accept, lambda opened: opened.close())
        return stream if self._is_here() else DistantStream(stream, self._do)

    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        place = await self._with(sandbox_id, lambda sandbox: sandbox.ports.forward(port))
        return PortAddress(url=f"http://{place}/", host=place)

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        """Run code in a sandbox of its own. All of it is done on the engine's loop."""
        return await self._do(super().run_once, request)

    async def aclose(self) -> None:
        await self._do(self._supervisor.aclose)

    # -- from the caller's loop to the engine's

    async def _with(
        self, sandbox_id: str, verb: Callable[[LiveSandbox], Awaitable[_T]], *, may_resume: bool = True
    ) -> _T:
        """Calls a method of a running sandbox."""

        async def work() -> _T:
            return await verb(await self._supervisor.awake(sandbox_id, may_resume=may_resume))

        return await self._do(work)

    async def _with_cleanup(
        self, sandbox_id: str, verb: Callable[[LiveSandbox], Coroutine[Any, Any, _T]]
    ) -> _T:
        """Calls a method that restores files when cancelled; later callers wait for that."""
        begun: list[tuple[LiveSandbox, asyncio.Task[_T]]] = []

        async def work() -> _T:
            sandbox = await self._supervisor.awake(sandbox_id)
            task = asyncio.create_task(verb(sandbox))
            begun.append((sandbox, task))
            try:
                return await wait_shared(task)
            except asyncio.CancelledError:
                note_cleanup()
                await cancel_and_wait(task)
                raise

        def note_cleanup() -> None:
            for sandbox, task in begun:
                sandbox.cleanups.add(task)

        try:
            return await self._do(work)
        except asyncio.CancelledError:
            # Before the engine receives this caller's next call.
            self._loop.call_soon_threadsafe(note_cleanup)
            raise

    async def _do(self, function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Awaits a call on the engine's loop, and converts faults of the host to errors."""
        with naming_faults(outcome_unknown=True):
            return await super()._do(function, *args, **kwargs)

    def _audit_log(self, sandbox_id: str) -> AuditLog:
        return self._supervisor.records.read(sandbox_id) or self._supervisor.find(sandbox_id).audit.read(
            sandbox_id
        )

    def _stream(
        self,
        sandbox_id: str,
        make: Callable[[LiveSandbox], AsyncGenerator[_T, None]],
        *,
        may_resume: bool = True,
    ) -> AsyncGenerator[_T, None]:
        """Follows a stream of a sandbox, which is resumed when the first item is requested."""

        async def begin() -> AsyncGenerator[_T, None]:
            return make(await self._supervisor.awake(sandbox_id, may_resume=may_resume))

        return self._items(begin)

    async def _later(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return function(*args, **kwargs)


async def _noting(chunks: AsyncIterator[bytes], failed: list[Exception]) -> AsyncGenerator[bytes, None]:
    """Yields the chunks, and records an exception of their source."""
    try:
        async for piece in chunks:
            yield piece
    except Exception as error:
        failed.append(error)
        raise


def _unheard(_event: Event) -> None:
    """Discards events of an execution that are not followed; its record has them too."""
