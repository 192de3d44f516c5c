"""The backend as one caller may see it: only its own sandboxes, within its limits, with all usage counted.

Every route and dialect calls it, and it calls the real backend. A sandbox of another key answers as if it had never
existed; no other module decides about the ownership of a sandbox. A verb of the port passes only if it has an entry
here, which declares its cost: a new verb without an entry is refused.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from enum import Enum
from os import PathLike
from types import MappingProxyType
from typing import Any, TypeVar

from cachetools import LRUCache

from fumehood.errors import ForbiddenError, RecordNotFoundError, SandboxNotFoundError
from fumehood.port.backend import Backend
from fumehood.port.record_keeping import RecordKeeping
from fumehood.server.allowance import Allowance
from fumehood.server.principal import Principal
from fumehood.server.server_audit import ServerAudit
from fumehood.values.audit import AuditLog
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import Family, ListSandboxes, Look, SandboxList
from fumehood.values.network import Network
from fumehood.values.requests import (
    ExecuteRequest,
    Forked,
    ForkRequest,
    Loaded,
    LoadRequest,
    ProcessSpec,
    SandboxSpec,
)
from fumehood.values.sandbox import Capacity, ProcessInfo, SandboxInfo
from fumehood.values.stateless import StatelessReply, StatelessRequest
from fumehood.values.watching import WatchEvents

_T = TypeVar("_T")


class Work(Enum):
    """The kind of work that a verb causes in the guest."""

    # Begins code of the caller or the guest: counts as an execution, and is refused when a quota of the day is used up.
    RUNS = "runs"
    # Counts like `RUNS`, but takes no place among those that run at once: it goes on beside what runs.
    BEGINS = "begins"
    # Makes the guest work for a request that was counted when it began, or for files and connections: its CPU time
    # counts.
    WORKS = "works"
    # Is answered by the host alone.
    LOOKS = "looks"


_RUNS = "execute run run_once stream_once judge save load"
_BEGINS = "ask send_comm start_process"
_WORKS = (
    "create fork adopt resume answer_input answer_tool answer_commit interrupt context_call checkpoint_call record "
    "read write file_call watch settle_watch process_output process_call open_port "
    "listen_port accept_port"
)
_LOOKS = (
    "info list page look watch_events watch_sandboxes capacity kill set_timeout set_labels pause set_network "
    "egress_log audit_log security_events metrics port_address "
    "find_records ended_sandbox look_back kept_record kept_audit delete_record"
)
# Verbs that only call other verbs, each of which passes the guard.
_MADE_OF_OTHERS = frozenset({"run_many", "aclose"})

WORK_OF: Mapping[str, Work] = MappingProxyType(
    {
        **dict.fromkeys(_RUNS.split(), Work.RUNS),
        **dict.fromkeys(_BEGINS.split(), Work.BEGINS),
        **dict.fromkeys(_WORKS.split(), Work.WORKS),
        **dict.fromkeys(_LOOKS.split(), Work.LOOKS),
    }
)


def verbs_of_port() -> frozenset[str]:
    """Returns the names of all verbs of the port that the guard must classify."""
    named = {
        name
        for port in (Backend, RecordKeeping)
        for name in dir(port)
        if not name.startswith("_") and callable(getattr(port, name))
    }
    return frozenset(named - _MADE_OF_OTHERS)


_REMEMBERED = 20_000


class Owners:
    """The owner of each sandbox; read from the backend once for each, since it never changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: LRUCache[str, str] = LRUCache(_REMEMBERED)

    def note(self, info: SandboxInfo) -> None:
        """Remembers the owner of a new sandbox, so that it need not be asked for."""
        self._known[info.id] = info.owner

    async def owner_of(self, sandbox_id: str) -> str:
        """Returns the owner; raises like `Backend.info` when it cannot be known."""
        owner = self._known.get(sandbox_id)

        if owner is None:
            owner = self._known[sandbox_id] = (await self._backend.info(sandbox_id)).owner

        return owner


def _forwarding(kind: type[Backend]) -> Any:
    """Gives a tenant's backend the verbs of the port that it does not define itself."""
    for verb in Backend.__abstractmethods__ - vars(kind).keys():
        setattr(kind, verb, _forwarded(verb))

    return abc.update_abstractmethods(kind)


def _forwarded(verb: str) -> Callable[..., Any]:
    async def ask(self: TenantBackend, sandbox_id: str, *args: Any, **options: Any) -> Any:
        async with self._way(verb, sandbox_id) as inner:
            return await getattr(inner, verb)(sandbox_id, *args, **options)

    async def stream(
        self: TenantBackend, sandbox_id: str, *args: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        async with (
            self._way(verb, sandbox_id) as inner,
            aclosing(getattr(inner, verb)(sandbox_id, *args, **options)) as items,
        ):
            async for item in items:
                yield item

    declared = getattr(Backend, verb)
    method: Any = functools.wraps(declared)(ask if inspect.iscoroutinefunction(declared) else stream)
    method.__isabstractmethod__ = False
    return method  # type: ignore[no-any-return]


@_forwarding
class TenantBackend(Backend, RecordKeeping):
    """The backend for one caller.

    A method that is not defined here is passed to the real backend after a check that the sandbox belongs to the
    caller; a method that `WORK_OF` does not name is refused.

    Args:
        inner: The real backend.
        owners: The owner of each sandbox.
        principal: The caller.
        allowance: The quotas of the caller; it also counts.
        via: The interface that the caller uses: api, or the name of a dialect.
        audit: The record of sandboxes of other keys that the server's owner kills.
    """

    def __init__(
        self,
        inner: Backend,
        owners: Owners,
        principal: Principal,
        allowance: Allowance,
        via: str = "api",
        audit: ServerAudit | None = None,
    ) -> None:
        self._inner = inner
        self._owners = owners
        self._principal = principal
        self._allowance = allowance
        self._via = via
        self._audit = audit

    @asynccontextmanager
    async def _way(
        self, verb: str, sandbox_id: str | None = None, *, count: int = 1
    ) -> AsyncGenerator[Backend, None]:
        """The only path to the real backend, for one verb: checks the owner of its sandbox, and counts it.

        Args:
            verb: The name of the verb in the port.
            sandbox_id: Its sandbox; None if the verb has none or creates one.
            count: How many executions the verb begins, if it runs code.

        Raises:
            SandboxNotFoundError: Another key owns the sandbox.
            QuotaError: A daily quota is used up, or the maximum number of executions is running.
            ForbiddenError: The cost of the verb is not declared.
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

        if not self._principal.sees(owner):
            raise SandboxNotFoundError(sandbox_id=sandbox_id)

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Start a sandbox that belongs to the caller.

        Raises:
            QuotaError: The caller has the maximum number of sandboxes, or has used up its time.
        """
        spec = self._allowance.bounded(replace(spec, owner=self._principal.key_id))

        async with self._way("create") as inner, self._allowance.new_sandboxes():
            info = await inner.create(spec)
            await self._allowance.settle(info)

        self._note_made(info)
        return info

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Make sandboxes that continue from the state of this one and belong to the same owner.

        Raises:
            QuotaError: The caller would have more sandboxes than allowed.
        """
        # The limits of the caller may have changed since the parent was made.
        self._allowance.check_like(await self.info(sandbox_id))
        request = self._allowance.bounded_fork(request)

        async with self._way("fork", sandbox_id) as inner, self._allowance.new_sandboxes(request.count):
            forked = await inner.fork(sandbox_id, request)
            await self._allowance.settle(*forked.items)

        self._note_made(*forked.items)
        return forked

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        await self._check(child_id)

        async with self._way("adopt", sandbox_id) as inner:
            return await inner.adopt(sandbox_id, child_id)

    async def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the lasting parts of a sandbox. It counts as one running execution."""
        async with self._way("save", sandbox_id) as inner, aclosing(inner.save(sandbox_id)) as pieces:
            async for piece in pieces:
                yield piece

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox, which belongs to the caller, from a saved state.

        Raises:
            QuotaError: The caller has the maximum number of sandboxes, or has used up its time.
        """
        spec = self._allowance.bounded(replace(request.spec, owner=self._principal.key_id))

        async with self._way("load") as inner, self._allowance.new_sandboxes():
            loaded = await inner.load(replace(request, spec=spec), archive)
            await self._allowance.settle(loaded.sandbox)

        self._note_made(loaded.sandbox)
        return loaded

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe the caller's sandboxes; the server's owner may see the sandboxes of all keys."""
        async with self._way("list") as inner:
            return await inner.list(owner if self._principal.sees_all else self._principal.seen_id)

    async def page(self, request: ListSandboxes) -> SandboxList:
        """Describe some of the caller's sandboxes; the server's owner may see those of all keys."""
        if not self._principal.sees_all:
            request = replace(request, owner=self._principal.seen_id)

        async with self._way("page") as inner:
            return await inner.page(request)

    async def look(self, sandbox_id: str, request: Look[_T]) -> _T:
        """Look at a sandbox of the caller. Only the server's owner sees relatives that belong to other keys."""
        async with self._way("look", sandbox_id) as inner:
            found: Any = await inner.look(sandbox_id, request)

        if isinstance(found, Family):
            own = tuple(one for one in found.items if self._principal.sees(one.owner))
            found = replace(found, items=own)

        answer: _T = found
        return answer

    async def watch_sandboxes(
        self, owner: str | None = None, after: int | None = None
    ) -> AsyncGenerator[WatchEvents, None]:
        """Follow the caller's sandboxes; the server's owner may follow those of all keys."""
        whose = owner if self._principal.sees_all else self._principal.seen_id

        async with (
            self._way("watch_sandboxes") as inner,
            aclosing(inner.watch_sandboxes(whose, after)) as coming,
        ):
            async for events in coming:
                yield events

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        try:
            await self._check(sandbox_id)
            owner = await self._owners.owner_of(sandbox_id)
        except SandboxNotFoundError:
            return False

        await self._allowance.spending.cpu.close(sandbox_id)

        async with self._way("kill", sandbox_id) as inner:
            is_killed = await inner.kill(sandbox_id, wait=wait)

        if is_killed and self._audit is not None and owner != self._principal.key_id:
            self._audit.note(
                "sandbox_killed", sandbox_id=sandbox_id, owner=owner, by=self._principal.key_id, via=self._via
            )

        return is_killed

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        async with self._way("set_timeout", sandbox_id) as inner:
            await inner.set_timeout(sandbox_id, self._allowance.bounded_seconds(timeout_seconds))

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        async with self._way("set_network", sandbox_id) as inner:
            self._allowance.check_network(network)
            await inner.set_network(sandbox_id, network)

    async def capacity(self) -> Capacity:
        async with self._way("capacity") as inner:
            return await inner.capacity()

    # -- records of sandboxes that have ended

    async def find_records(self, request: ListRecords) -> RecordList:
        """Describe the caller's sandboxes that have ended; the server's owner may see those of all keys."""
        if not self._principal.sees_all:
            request = replace(request, owner=self._principal.seen_id)

        async with self._way("find_records") as inner:
            return (
                await inner.find_records(request)
                if isinstance(inner, RecordKeeping)
                else RecordList(is_kept=False)
            )

    async def ended_sandbox(self, sandbox_id: str) -> EndedSandbox:
        async with self._way_back("ended_sandbox", sandbox_id) as (_, about):
            return about

    async def look_back(self, sandbox_id: str, request: Look[_T]) -> _T:
        async with self._way_back("look_back", sandbox_id) as (records, _):
            return await records.look_back(sandbox_id, request)

    async def kept_record(self, sandbox_id: str, context_id: str | None = None) -> Record:
        async with self._way_back("kept_record", sandbox_id) as (records, _):
            return await records.kept_record(sandbox_id, context_id)

    async def kept_audit(self, sandbox_id: str) -> AuditLog:
        async with self._way_back("kept_audit", sandbox_id) as (records, _):
            return await records.kept_audit(sandbox_id)

    async def delete_record(self, sandbox_id: str) -> None:
        async with self._way_back("delete_record", sandbox_id) as (records, about):
            await records.delete_record(sandbox_id)

        owner = about.sandbox.owner

        if self._audit is not None and owner != self._principal.key_id:
            self._audit.note(
                "record_deleted", sandbox_id=sandbox_id, owner=owner, by=self._principal.key_id, via=self._via
            )

    @asynccontextmanager
    async def _way_back(
        self, verb: str, sandbox_id: str
    ) -> AsyncGenerator[tuple[RecordKeeping, EndedSandbox], None]:
        """The only path to a kept record: checks the owner that it names.

        Raises:
            RecordNotFoundError: The record does not exist, or another key owned the sandbox.
        """
        async with self._way(verb) as inner:
            if not isinstance(inner, RecordKeeping):
                raise RecordNotFoundError(sandbox_id=sandbox_id)

            about = await inner.ended_sandbox(sandbox_id)

            if not self._principal.sees(about.sandbox.owner):
                raise RecordNotFoundError(sandbox_id=sandbox_id)

            yield inner, about

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
        """Returns the request within the bounds of the key, which may be less than the limits of its sandbox.

        A request that is refused here was not begun, and is not counted. The result also names the key and the
        interface of the caller.
        """
        request = replace(request, by=self._principal.key_id, via=self._via)
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

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        request = self._allowance.bounded_judge(request)
        try:
            async with self._way("judge", sandbox_id, count=max(1, len(request.stdins))) as inner:
                return await inner.judge(sandbox_id, request)
        finally:
            # Much can run in it, and the next request is held against the day.
            await self._allowance.spending.cpu.charge_latest(sandbox_id)

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        async with self._way("start_process", sandbox_id) as inner:
            return await inner.start_process(sandbox_id, self._allowance.bounded_command(spec))

    async def aclose(self) -> None:
        """Do nothing: a caller cannot close the shared backend."""


def records_of(backend: Backend) -> RecordKeeping:
    """Returns the kept records as the caller of this backend may see them; a host daemon's caller sees all."""
    assert isinstance(backend, RecordKeeping), "the engine and the backend of a tenant are"
    return backend
