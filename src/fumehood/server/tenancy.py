"""The backend as one caller may see it: only its own sandboxes, within its limits, all of it counted.

Runs in the server process, between every route or dialect and the real backend. A sandbox of somebody else
answers as if it had never existed. Nothing else decides whose a sandbox is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from os import PathLike

from fumehood.audit.entries import AuditLog
from fumehood.backends.base import Backend
from fumehood.backends.checkpoint_requests import CheckpointCall, CommitAnswer
from fumehood.backends.fork_requests import Forked, ForkRequest
from fumehood.backends.questions import Answer, CommMessage, Question
from fumehood.backends.requests import (
    ContextCall,
    ExecuteRequest,
    FileCall,
    InputAnswer,
    ProcessCall,
    ProcessEvent,
    ProcessSpec,
    ReadFile,
    SandboxSpec,
)
from fumehood.backends.save_requests import Loaded, LoadRequest
from fumehood.backends.stateless import StatelessReply, StatelessRequest
from fumehood.backends.streams import ByteStream
from fumehood.backends.tool_requests import ToolAnswer
from fumehood.errors import SandboxNotFoundError
from fumehood.events import Event, ExecutionFinished
from fumehood.execution import Execution
from fumehood.judging import CaseRun, JudgeRequest
from fumehood.models import (
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
from fumehood.network import EgressRecord, Network
from fumehood.record import Record
from fumehood.security import SecurityEvent
from fumehood.server.allowance import Allowance
from fumehood.server.principal import Principal

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

    async def _check(self, sandbox_id: str) -> None:
        owner = await self._owners.owner_of(sandbox_id)

        if owner != self._principal.key_id and not self._principal.is_owner:
            raise SandboxNotFoundError(sandbox_id=sandbox_id)

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Start a sandbox that belongs to the caller; see the port.

        Raises:
            QuotaError: The caller has as many as it may, or has used up its time.
        """
        spec = self._allowance.bounded(replace(spec, owner=self._principal.key_id))

        async with self._allowance.new_sandboxes():
            info = await self._inner.create(spec)

        self._owners.note(info)
        return info

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Make sandboxes that go on from the state of this one and belong to the same owner; see the port.

        Raises:
            QuotaError: The caller would have more than it may.
        """
        await self._check(sandbox_id)
        # What the caller may have could have changed since the parent was made.
        self._allowance.check_like(await self._inner.info(sandbox_id))
        request = self._allowance.bounded_fork(request)

        async with self._allowance.new_sandboxes(request.count):
            forked = await self._inner.fork(sandbox_id, request)

        for info in forked.items:
            self._owners.note(info)

        return forked

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        """Let a fork take the place of its parent, both the caller's; see the port."""
        await self._check(sandbox_id)
        await self._check(child_id)
        return await self._inner.adopt(sandbox_id, child_id)

    async def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts; see the port. It counts as one execution that runs."""
        await self._check(sandbox_id)

        with self._allowance.execution():
            async with aclosing(self._inner.save(sandbox_id)) as pieces:
                async for piece in pieces:
                    yield piece

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state that belongs to the caller; see the port.

        Raises:
            QuotaError: The caller has as many as it may, or has used up its time.
        """
        spec = self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))

        with self._allowance.execution():
            async with self._allowance.new_sandboxes():
                loaded = await self._inner.load(replace(request, spec=spec), archive)

        self._owners.note(loaded.sandbox)
        return loaded

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Describe a sandbox; see the port."""
        await self._check(sandbox_id)
        return await self._inner.info(sandbox_id)

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe the caller's sandboxes; the server's owner may see everybody's."""
        return await self._inner.list(owner if self._principal.is_owner else self._principal.key_id)

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        """End a sandbox; see the port."""
        try:
            await self._check(sandbox_id)
        except SandboxNotFoundError:
            return False

        return await self._inner.kill(sandbox_id, wait=wait)

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        """Let a sandbox live for so long from now on; see the port."""
        await self._check(sandbox_id)
        await self._inner.set_timeout(sandbox_id, self._allowance.bounded_seconds(timeout_seconds))

    async def pause(self, sandbox_id: str) -> bool:
        """Freeze a sandbox; see the port."""
        await self._check(sandbox_id)
        return await self._inner.pause(sandbox_id)

    async def resume(self, sandbox_id: str) -> bool:
        """Let a frozen sandbox go on; see the port."""
        await self._check(sandbox_id)
        return await self._inner.resume(sandbox_id)

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        """Change what a sandbox may reach, within what the server and the key allow; see the port."""
        await self._check(sandbox_id)
        self._allowance.check_network(network)
        await self._inner.set_network(sandbox_id, network)

    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        """Tell what a sandbox reached and tried to reach; see the port."""
        await self._check(sandbox_id)
        return await self._inner.egress_log(sandbox_id)

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        """Tell what happened in and around a sandbox; see the port."""
        await self._check(sandbox_id)
        return await self._inner.audit_log(sandbox_id)

    async def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        """Give the security events of a sandbox; see the port."""
        await self._check(sandbox_id)

        async with aclosing(self._inner.security_events(sandbox_id)) as events:
            async for event in events:
                yield event

    async def metrics(self, sandbox_id: str) -> Metrics:
        """Tell what a sandbox uses now; see the port."""
        await self._check(sandbox_id)
        return await self._inner.metrics(sandbox_id)

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        """Give the record of a context; see the port."""
        await self._check(sandbox_id)
        return await self._inner.record(sandbox_id, context_id)

    async def capacity(self) -> Capacity:
        """Tell what the host has left; see the port."""
        return await self._inner.capacity()

    # -- code

    async def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        """Run code in a context; see the port."""
        await self._check(sandbox_id)

        with self._allowance.execution() as count:
            async with aclosing(self._inner.execute(sandbox_id, request)) as events:
                async for event in events:
                    if isinstance(event, ExecutionFinished):
                        count(event.execution)

                    yield event

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        """Run code to its end; see the port."""
        await self._check(sandbox_id)

        with self._allowance.execution() as count:
            execution = await self._inner.run(sandbox_id, request)
            count(execution)
            return execution

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        """Run code in a sandbox of its own; see the port."""
        request = replace(
            request, spec=self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))
        )

        with self._allowance.execution() as count:
            reply = await self._inner.run_once(request)
            count(reply.execution)
            return reply

    async def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        """Run code in a sandbox of its own, and follow it; see the port."""
        request = replace(
            request, spec=self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))
        )

        with self._allowance.execution() as count:
            async with aclosing(self._inner.stream_once(request)) as items:
                async for item in items:
                    if isinstance(item, StatelessReply):
                        count(item.execution)

                    yield item

    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        """Answer a question of running code; see the port."""
        await self._check(sandbox_id)
        await self._inner.answer_input(sandbox_id, answer)

    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        """Answer a call of running code; see the port."""
        await self._check(sandbox_id)
        await self._inner.answer_tool(sandbox_id, answer)

    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        """Interrupt what runs in a context; see the port."""
        await self._check(sandbox_id)
        return await self._inner.interrupt(sandbox_id, context_id)

    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        """Create, list, restart or remove contexts; see the port."""
        await self._check(sandbox_id)
        return await self._inner.context_call(sandbox_id, call)

    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        """Answer a CommitRequestEvent; see the port."""
        await self._check(sandbox_id)
        await self._inner.answer_commit(sandbox_id, answer)

    async def checkpoint_call(self, sandbox_id: str, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        """Make, list, go back to or drop checkpoints; see the port."""
        await self._check(sandbox_id)
        return await self._inner.checkpoint_call(sandbox_id, call)

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Run a program for many inputs; see the port."""
        await self._check(sandbox_id)
        return await self._inner.judge(sandbox_id, request)

    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        """Ask a context about code; see the port."""
        await self._check(sandbox_id)
        return await self._inner.ask(sandbox_id, question)

    async def send_comm(
        self, sandbox_id: str, message: CommMessage, context_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Give a comm message to a context; see the port."""
        await self._check(sandbox_id)

        async with aclosing(self._inner.send_comm(sandbox_id, message, context_id)) as events:
            async for event in events:
                yield event

    # -- files

    async def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces; see the port."""
        await self._check(sandbox_id)

        async with aclosing(self._inner.read(sandbox_id, request)) as pieces:
            async for piece in pieces:
                yield piece

    async def write(self, sandbox_id: str, path: str, chunks: AsyncIterator[bytes]) -> FileInfo:
        """Write a file; see the port."""
        await self._check(sandbox_id)
        return await self._inner.write(sandbox_id, path, chunks)

    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        """Describe, list, make, remove or rename; see the port."""
        await self._check(sandbox_id)
        return await self._inner.file_call(sandbox_id, call)

    async def watch(self, sandbox_id: str, path: str, *, recursive: bool) -> AsyncGenerator[FileChange, None]:
        """Watch a directory; see the port."""
        await self._check(sandbox_id)
        return await self._inner.watch(sandbox_id, path, recursive=recursive)

    # -- commands and ports

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        """Start a command; see the port."""
        await self._check(sandbox_id)
        return await self._inner.start_process(sandbox_id, spec)

    async def process_output(self, sandbox_id: str, pid: int) -> AsyncGenerator[ProcessEvent, None]:
        """Follow a command; see the port."""
        await self._check(sandbox_id)

        async with aclosing(self._inner.process_output(sandbox_id, pid)) as events:
            async for event in events:
                yield event

    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        """List commands, feed, signal or resize one; see the port."""
        await self._check(sandbox_id)
        return await self._inner.process_call(sandbox_id, call)

    async def open_port(self, sandbox_id: str, port: int) -> ByteStream:
        """Connect to a port of a sandbox; see the port."""
        await self._check(sandbox_id)
        return await self._inner.open_port(sandbox_id, port)

    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        """Tell where a port of a sandbox is reached on the server's machine; see the port."""
        await self._check(sandbox_id)
        return await self._inner.port_address(sandbox_id, port)

    async def aclose(self) -> None:
        """Do nothing: what the caller sees is not the caller's to end."""
