"""The backend as one caller may see it: only its own sandboxes, within its limits, all of it counted.

Runs in the server process, between every route or dialect and the real backend. A sandbox of somebody else
answers as if it had never existed. Nothing else decides whose a sandbox is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from os import PathLike

from fumehood.errors import ForbiddenError, SandboxNotFoundError
from fumehood.port.backend import Backend, ByteStream
from fumehood.port.stateless import StatelessReply, StatelessRequest
from fumehood.server.allowance import Allowance
from fumehood.server.principal import Principal
from fumehood.server.verbs import WORK_OF, Work
from fumehood.values.audit import AuditLog
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseRun, JudgeRequest
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
    Metrics,
    PortAddress,
    ProcessInfo,
    SandboxInfo,
)
from fumehood.values.security import SecurityEvent

_REMEMBERED = 20_000


class Owners:
    """Whose a sandbox is; asked of the backend once for each, since it never changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: OrderedDict[str, str] = OrderedDict()

    def note(self, info: SandboxInfo) -> None:
        """A sandbox was made."""
        self._known[info.id] = info.owner

        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def owner_of(self, sandbox_id: str) -> str:
        """Returns whose it is; raises like `Backend.info` when that cannot be known."""
        if sandbox_id not in self._known:
            self.note(await self._backend.info(sandbox_id))

        return self._known[sandbox_id]


class TenantBackend(Backend):
    """The backend for one caller.

    Args:
        inner: The real one.
        owners: Whose each sandbox is.
        principal: The caller.
        allowance: What the caller may still use; it also counts.
    """

    def __init__(self, inner: Backend, owners: Owners, principal: Principal, allowance: Allowance) -> None:
        self._inner = inner
        self._owners = owners
        self._principal = principal
        self._allowance = allowance

    @asynccontextmanager
    async def _way(
        self, verb: str, sandbox_id: str | None = None, *, count: int = 1
    ) -> AsyncGenerator[Backend, None]:
        """The one way to the real backend, for one verb: it is counted, and its sandbox is the caller's.

        Args:
            verb: Its name in the port.
            sandbox_id: The sandbox that it concerns; None: none, or one that is to be made.
            count: How many executions it begins, if it runs code.

        Raises:
            SandboxNotFoundError: The sandbox is somebody else's.
            QuotaError: A quota of the day is used up, or as many run as may.
            ForbiddenError: Nobody has said what the verb costs.
        """
        work = WORK_OF.get(verb)

        if work is None:
            raise ForbiddenError(reason=f"what {verb!r} costs is not known to this server")

        if sandbox_id is not None:
            await self._check(sandbox_id)

        with ExitStack() as held:
            if work is Work.RUNS:
                held.enter_context(self._allowance.execution(count))
            elif work is Work.BEGINS:
                self._allowance.begin(count)

            try:
                yield self._inner
            finally:
                if work is not Work.LOOKS and sandbox_id is not None:
                    self._allowance.spending.cpu.note_work(sandbox_id)

    def _note_made(self, *made: SandboxInfo) -> None:
        for info in made:
            self._owners.note(info)

            self._allowance.spending.cpu.open(info.id, info.owner)

    async def _check(self, sandbox_id: str) -> None:
        owner = await self._owners.owner_of(sandbox_id)

        if owner != self._principal.key_id and not self._principal.is_owner:
            raise SandboxNotFoundError(sandbox_id=sandbox_id)

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Start a sandbox that belongs to the caller.

        Raises:
            QuotaError: The caller has as many as it may, or has used up its time.
        """
        spec = self._allowance.bounded(replace(spec, owner=self._principal.key_id))

        async with self._way("create") as inner, self._allowance.new_sandboxes():
            info = await inner.create(spec)

        self._note_made(info)
        return info

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Make sandboxes that go on from the state of this one and belong to the same owner.

        Raises:
            QuotaError: The caller would have more than it may.
        """
        # What the caller may have could have changed since the parent was made.
        self._allowance.check_like(await self.info(sandbox_id))
        request = self._allowance.bounded_fork(request)

        async with self._way("fork", sandbox_id) as inner, self._allowance.new_sandboxes(request.count):
            forked = await inner.fork(sandbox_id, request)

        self._note_made(*forked.items)
        return forked

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        await self._check(child_id)

        async with self._way("adopt", sandbox_id) as inner:
            return await inner.adopt(sandbox_id, child_id)

    async def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts. It counts as one execution that runs."""
        async with self._way("save", sandbox_id) as inner, aclosing(inner.save(sandbox_id)) as pieces:
            async for piece in pieces:
                yield piece

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state that belongs to the caller.

        Raises:
            QuotaError: The caller has as many as it may, or has used up its time.
        """
        spec = self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))

        async with self._way("load") as inner, self._allowance.new_sandboxes():
            loaded = await inner.load(replace(request, spec=spec), archive)

        self._note_made(loaded.sandbox)
        return loaded

    async def info(self, sandbox_id: str) -> SandboxInfo:
        async with self._way("info", sandbox_id) as inner:
            return await inner.info(sandbox_id)

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe the caller's sandboxes; the server's owner may see everybody's."""
        async with self._way("list") as inner:
            return await inner.list(owner if self._principal.is_owner else self._principal.key_id)

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        try:
            await self._check(sandbox_id)
        except SandboxNotFoundError:
            return False

        await self._allowance.spending.cpu.close(sandbox_id)

        async with self._way("kill", sandbox_id) as inner:
            return await inner.kill(sandbox_id, wait=wait)

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        async with self._way("set_timeout", sandbox_id) as inner:
            await inner.set_timeout(sandbox_id, self._allowance.bounded_seconds(timeout_seconds))

    async def pause(self, sandbox_id: str) -> bool:
        async with self._way("pause", sandbox_id) as inner:
            return await inner.pause(sandbox_id)

    async def resume(self, sandbox_id: str) -> bool:
        async with self._way("resume", sandbox_id) as inner:
            return await inner.resume(sandbox_id)

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        async with self._way("set_network", sandbox_id) as inner:
            self._allowance.check_network(network)
            await inner.set_network(sandbox_id, network)

    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        async with self._way("egress_log", sandbox_id) as inner:
            return await inner.egress_log(sandbox_id)

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        async with self._way("audit_log", sandbox_id) as inner:
            return await inner.audit_log(sandbox_id)

    async def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        async with (
            self._way("security_events", sandbox_id) as inner,
            aclosing(inner.security_events(sandbox_id)) as events,
        ):
            async for event in events:
                yield event

    async def metrics(self, sandbox_id: str) -> Metrics:
        async with self._way("metrics", sandbox_id) as inner:
            return await inner.metrics(sandbox_id)

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        async with self._way("record", sandbox_id) as inner:
            return await inner.record(sandbox_id, context_id)

    async def capacity(self) -> Capacity:
        async with self._way("capacity") as inner:
            return await inner.capacity()

    # -- code

    async def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        request = await self._bounded(sandbox_id, request)

        async with (
            self._way("execute", sandbox_id) as inner,
            aclosing(inner.execute(sandbox_id, request)) as events,
        ):
            async for event in events:
                if isinstance(event, ExecutionFinished):
                    self._allowance.count(event.execution, sandbox_id)

                yield event

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        request = await self._bounded(sandbox_id, request)

        async with self._way("run", sandbox_id) as inner:
            execution = await inner.run(sandbox_id, request)
            self._allowance.count(execution, sandbox_id)
            return execution

    async def _bounded(self, sandbox_id: str, request: ExecuteRequest) -> ExecuteRequest:
        """The request within what the key allows, which may be less than what its sandbox was made with.

        What is refused here was not begun, and is not counted.
        """
        is_bounded = "wall_seconds" in self._principal.policy.max_limits
        limits = (await self.info(sandbox_id)).limits if is_bounded else None
        return self._allowance.bounded_execution(request, limits)

    def _bounded_once(self, request: StatelessRequest) -> StatelessRequest:
        spec = self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))
        return replace(request, spec=spec, code=self._allowance.bounded_execution(request.code))

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        request = self._bounded_once(request)

        async with self._way("run_once") as inner:
            reply = await inner.run_once(request)
            self._allowance.count(reply.execution)
            return reply

    async def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        request = self._bounded_once(request)

        async with self._way("stream_once") as inner, aclosing(inner.stream_once(request)) as items:
            async for item in items:
                if isinstance(item, StatelessReply):
                    self._allowance.count(item.execution)

                yield item

    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        async with self._way("answer_input", sandbox_id) as inner:
            await inner.answer_input(sandbox_id, answer)

    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        async with self._way("answer_tool", sandbox_id) as inner:
            await inner.answer_tool(sandbox_id, answer)

    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        async with self._way("interrupt", sandbox_id) as inner:
            return await inner.interrupt(sandbox_id, context_id)

    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        async with self._way("context_call", sandbox_id) as inner:
            return await inner.context_call(sandbox_id, call)

    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        async with self._way("answer_commit", sandbox_id) as inner:
            await inner.answer_commit(sandbox_id, answer)

    async def checkpoint_call(self, sandbox_id: str, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        async with self._way("checkpoint_call", sandbox_id) as inner:
            return await inner.checkpoint_call(sandbox_id, call)

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        request = self._allowance.bounded_judge(request)
        try:
            async with self._way("judge", sandbox_id, count=max(1, len(request.stdins))) as inner:
                return await inner.judge(sandbox_id, request)
        finally:
            # Much can run in it, and what comes next is held against the day.
            await self._allowance.spending.cpu.settle(sandbox_id)

    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        async with self._way("ask", sandbox_id) as inner:
            return await inner.ask(sandbox_id, question)

    async def send_comm(
        self, sandbox_id: str, message: CommMessage, context_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        async with (
            self._way("send_comm", sandbox_id) as inner,
            aclosing(inner.send_comm(sandbox_id, message, context_id)) as events,
        ):
            async for event in events:
                yield event

    # -- files

    async def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        async with (
            self._way("read", sandbox_id) as inner,
            aclosing(inner.read(sandbox_id, request)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> FileInfo:
        async with self._way("write", sandbox_id) as inner:
            return await inner.write(sandbox_id, path, chunks, metadata=metadata)

    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        async with self._way("file_call", sandbox_id) as inner:
            return await inner.file_call(sandbox_id, call)

    async def watch(self, sandbox_id: str, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        async with self._way("watch", sandbox_id) as inner:
            return await inner.watch(sandbox_id, request)

    async def settle_watch(self, sandbox_id: str, name: str) -> int:
        async with self._way("settle_watch", sandbox_id) as inner:
            return await inner.settle_watch(sandbox_id, name)

    # -- commands and ports

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        async with self._way("start_process", sandbox_id) as inner:
            return await inner.start_process(sandbox_id, spec)

    async def process_output(self, sandbox_id: str, pid: int) -> AsyncGenerator[ProcessEvent, None]:
        async with (
            self._way("process_output", sandbox_id) as inner,
            aclosing(inner.process_output(sandbox_id, pid)) as events,
        ):
            async for event in events:
                yield event

    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        async with self._way("process_call", sandbox_id) as inner:
            return await inner.process_call(sandbox_id, call)

    async def open_port(self, sandbox_id: str, port: int) -> ByteStream:
        async with self._way("open_port", sandbox_id) as inner:
            return await inner.open_port(sandbox_id, port)

    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        async with self._way("port_address", sandbox_id) as inner:
            return await inner.port_address(sandbox_id, port)

    async def aclose(self) -> None:
        """Do nothing: what the caller sees is not the caller's to end."""
