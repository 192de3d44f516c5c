"""The port over a server's native API: sandboxes of another process.

Each verb is one request; only connections are kept here. Responses of the server are checked and become the same
values, and the same errors, as those of a sandbox in this process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any, TypeVar

from fumehood.client.connection import (
    GONE,
    Carrier,
    HttpConnection,
    ServerAddress,
    event_of,
    process_event_of,
    query_of,
    quoted,
    sandbox_path,
)
from fumehood.client.looking import ask_look, list_query, read_list
from fumehood.client.record_keeping import (
    RECORDS,
    ask_back,
    read_ended,
    read_records,
    record_path,
    records_query,
)
from fumehood.client.sharing import SHARES, read_made_share, read_shares, share_body
from fumehood.client.stateless import (
    BatchCalls,
    GroupedRun,
    answer_in,
    answers_of,
    batches_of,
    fits_one_request,
    group_body,
    stateless_body,
    stateless_item,
)
from fumehood.errors import FumehoodError, HostUnavailableError, LoadError, TemplateError
from fumehood.port.backend import ARRIVED, Backend, ByteStream
from fumehood.port.loop_bound import DistantStream, LoopBound
from fumehood.port.record_keeping import RecordKeeping
from fumehood.port.sharing import Sharing
from fumehood.values.audit import AuditLog
from fumehood.values.codec import DataError, read_value
from fumehood.values.events import Event
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.kept_records import EndedSandbox, ListRecords, RecordList
from fumehood.values.looking import ListSandboxes, Look, SandboxList
from fumehood.values.network import EgressRecord, Network
from fumehood.values.plain_data import as_data
from fumehood.values.questions import (
    Answer,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
    Question,
)
from fumehood.values.requests import (
    DEFAULT_CONTEXT_ID,
    CheckpointCall,
    CloseStdin,
    CommitAnswer,
    ContextCall,
    CreateContext,
    DropCheckpoint,
    ExecuteRequest,
    FileCall,
    Forked,
    ForkRequest,
    InputAnswer,
    ListCheckpoints,
    ListContexts,
    ListFiles,
    ListProcesses,
    Loaded,
    LoadRequest,
    MakeDir,
    ProcessCall,
    ProcessEvent,
    ProcessSpec,
    ReadFile,
    RemoveContext,
    RemoveFile,
    RenameFile,
    ResizePty,
    RestartContext,
    RollBack,
    SandboxSpec,
    SendStdin,
    SignalProcess,
    StatFile,
    TakeCheckpoint,
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
from fumehood.values.shares import MakeShare, Share
from fumehood.values.stateless import StatelessReply, StatelessRequest
from fumehood.values.watching import WatchEvents, watch_event_of


def _security_event_of(line: dict[str, Any]) -> SecurityEvent:
    return read_value(SecurityEvent, line)


_MOST_CASES = 200

Ask = Callable[..., Awaitable[Any]]
Read = Callable[[type[CheckpointInfo], object], CheckpointInfo]


async def call_checkpoints(
    ask: Ask, read: Read, sandbox_id: str, call: CheckpointCall
) -> tuple[CheckpointInfo, ...]:
    """Asks a server to make, list, go back to or drop checkpoints."""
    place = sandbox_path(sandbox_id, "checkpoints")

    match call:
        case TakeCheckpoint(context_id=context_id, name=name, strict=strict):
            wish = {"context_id": context_id, "name": name, "strict": strict}
            return (read(CheckpointInfo, await ask("POST", place, json=wish)),)
        case ListCheckpoints():
            found = await ask("GET", place)
            return tuple(read(CheckpointInfo, item) for item in found["items"])
        case RollBack(checkpoint_id=checkpoint_id):
            made = await ask("POST", f"{place}/{quoted(checkpoint_id)}/rollback")
            return (read(CheckpointInfo, made),)
        case DropCheckpoint(checkpoint_id=checkpoint_id):
            await ask("DELETE", f"{place}/{quoted(checkpoint_id)}")
            return ()


def judge_bodies(request: JudgeRequest) -> Iterator[dict[str, Any]]:
    """Yields the bodies of the requests that judge all cases; each has as many cases as a server accepts at once."""
    for start in range(0, len(request.stdins), _MOST_CASES):
        yield {
            "code": request.code,
            "stdins": list(request.stdins[start : start + _MOST_CASES]),
            "timeout_seconds": request.wall_seconds,
            "memory_bytes": request.memory_bytes,
            "concurrency": request.concurrency,
            "language": request.language,
        }


async def call_files(ask: Ask, sandbox_id: str, call: FileCall) -> list[object]:
    """Asks a server to describe, list, make, remove or rename; returns its answers, each a `FileInfo` as data."""
    place = sandbox_path(sandbox_id, "files")

    match call:
        case StatFile(path=path):
            return [await ask("GET", f"{place}/info", params={"path": path})]
        case ListFiles(path=path, depth=depth, share=share):
            headers = _share_headers(share)
            found = await ask("GET", place, params={"path": path, "depth": depth}, headers=headers)
            return list(found["items"])
        case MakeDir(path=path):
            return [await ask("POST", f"{place}/directories", json={"path": path})]
        case RemoveFile(path=path):
            await ask("DELETE", place, params={"path": path})
            return []
        case RenameFile(source=source, destination=destination):
            body = {"source": source, "destination": destination}
            return [await ask("POST", f"{place}/rename", json=body)]


def watch_query(request: WatchFiles) -> dict[str, str]:
    """Returns the query that asks for a watch."""
    query = {
        "path": request.path,
        "recursive": str(request.recursive).lower(),
        "entries": str(request.entries).lower(),
    }
    return {**query, "name": request.name} if request.name else query


def metadata_headers(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the headers that give a file its metadata."""
    return {f"x-metadata-{name}": value for name, value in (metadata or {}).items()}


async def ask_to_fork(ask: Ask, sandbox_id: str, request: ForkRequest) -> object:
    """Asks a server to fork a sandbox; returns its answer, a `Forked` as data."""
    body = {
        "count": request.count,
        "checkpoint_id": request.checkpoint_id,
        "reseed": request.reseed,
        "timeout_seconds": request.timeout_seconds,
        "metadata": None if request.metadata is None else dict(request.metadata),
    }
    return await ask("POST", sandbox_path(sandbox_id, "forks"), json=body)


async def ask_to_adopt(ask: Ask, sandbox_id: str, child_id: str) -> object:
    """Asks a server to replace a sandbox by a fork; returns its answer, a `SandboxInfo` as data."""
    return await ask("POST", sandbox_path(sandbox_id, "adopt"), json={"child_id": child_id})


_PIECE_BYTES = 1 << 20
# More than any result may have.
_MAX_RESULT_BYTES = 64 << 20


# A sandbox, a path and seconds; the address and its end.
SignFile = Callable[[str, str, int], Awaitable[tuple[str, datetime]]]


def signer_of(backend: Backend) -> SignFile | None:
    """Return a function that signs addresses for reading files, or None without a server."""
    if not isinstance(backend, HttpBackend):
        return None

    async def sign(sandbox_id: str, path: str, expires_seconds: int) -> tuple[str, datetime]:
        body = {"path": path, "expires_in_seconds": expires_seconds}
        signed = await backend._ask("POST", f"/v1/sandboxes/{sandbox_id}/files/sign", json=body)
        return str(signed["url"]), backend._checked(datetime.fromisoformat, signed["expires_at"])

    return sign


_T = TypeVar("_T")
_LIST_PAGE = 1000
_MAX_PIECE_BYTES = 1 << 20


class HttpBackend(LoopBound, Backend, Sharing, RecordKeeping):
    """The sandboxes of a server.

    Args:
        address: The address of the server.
        loop: The loop of the connections, which runs or will run.
        carrier: The transport of requests; None: TCP, or the unix socket of the address.
    """

    def __init__(
        self, address: ServerAddress, loop: asyncio.AbstractEventLoop, carrier: Carrier | None = None
    ) -> None:
        super().__init__(loop)
        self._connection = HttpConnection(address, carrier)
        # The owner of new sandboxes: only a host daemon, whose socket is its owner's alone, accepts it.
        self._on_behalf = address.is_host
        # A server of a cluster reaches host daemons through the carrier of their adapter.
        self._has_host_alone = address.is_host and carrier is None

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        if not isinstance(spec.template, str):
            raise TemplateError(
                template=spec.template.name,
                reason="a server knows templates only by name",
                hint="build it there with `fumehood template build`, and give its name",
            )

        # A server decides itself whether it keeps records.
        wished = spec if self._on_behalf else replace(spec, is_recorded=True)
        body = {**_wish(wished), "limits": spec.limits_asked}
        answer = await self._ask("POST", "/v1/sandboxes", json=body, params=self._creation_query(spec))
        return self._read(SandboxInfo, answer)

    async def info(self, sandbox_id: str) -> SandboxInfo:
        return self._read(SandboxInfo, await self._ask("GET", sandbox_path(sandbox_id)))

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        found: list[SandboxInfo] = []
        cursor: str | None = None

        while True:
            query = query_of(limit=_LIST_PAGE, cursor=cursor, owner=owner if self._on_behalf else None)
            page = await self._ask("GET", "/v1/sandboxes", params=query)
            found.extend(self._read(SandboxInfo, item) for item in page["items"])
            cursor = page["next_cursor"]

            if cursor is None:
                return tuple(info for info in found if owner is None or info.owner == owner)

    async def page(self, request: ListSandboxes) -> SandboxList:
        answer = await self._ask("GET", "/v1/sandboxes", params=list_query(request))
        return self._checked(read_list, answer)

    async def look(self, sandbox_id: str, request: Look[_T]) -> _T:
        try:
            answer: _T = await ask_look(self._ask, self._ask_bytes, sandbox_id, request)
        except DataError as error:
            raise self._unfit(error) from None

        return answer

    async def find_records(self, request: ListRecords) -> RecordList:
        return self._checked(read_records, await self._ask("GET", RECORDS, params=records_query(request)))

    async def ended_sandbox(self, sandbox_id: str) -> EndedSandbox:
        return self._checked(read_ended, await self._ask("GET", record_path(sandbox_id)))

    async def look_back(self, sandbox_id: str, request: Look[_T]) -> _T:
        try:
            answer: _T = await ask_back(self._ask, self._ask_bytes, sandbox_id, request)
        except DataError as error:
            raise self._unfit(error) from None

        return answer

    async def kept_record(self, sandbox_id: str, context_id: str | None = None) -> Record:
        place = record_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "record")
        return self._read(Record, await self._ask("GET", place))

    async def kept_audit(self, sandbox_id: str) -> AuditLog:
        return self._read(AuditLog, await self._ask("GET", record_path(sandbox_id, "audit")))

    async def delete_record(self, sandbox_id: str) -> None:
        await self._ask("DELETE", record_path(sandbox_id))

    async def capacity(self) -> Capacity:
        return self._read(Capacity, await self._ask("GET", "/v1/capacity"))

    async def set_draining(self, is_draining: bool) -> None:
        """Make a host daemon stop or resume making sandboxes (other than forks); a server refuses this."""
        await self._ask("PUT", "/v1/host/draining", json={"is_draining": is_draining})

    async def copy_template(self, name: str, target: HttpBackend) -> None:
        """Send a template of this host daemon to another one's machine; a server refuses this.

        Raises:
            TemplateStoreError: The template cannot be sent, or cannot be used on the other machine; no part of it
                remains there.
        """
        path = f"/v1/host/templates/{quoted(name)}"

        async with self._connection.stream("GET", path) as answer:
            await target._ask("PUT", path, content=answer.aiter_bytes(_PIECE_BYTES))

    async def make_share(self, request: MakeShare) -> Share:
        return self._checked(read_made_share, await self._ask("POST", SHARES, json=share_body(request)))

    async def list_shares(self, sandbox_id: str) -> tuple[Share, ...]:
        answer = await self._ask("GET", SHARES, params=query_of(sandbox_id=sandbox_id))
        return self._checked(read_shares, answer)

    async def revoke_share(self, share_id: str) -> None:
        await self._ask("DELETE", f"{SHARES}/{quoted(share_id)}")

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        try:
            await self._ask(
                "DELETE", sandbox_path(sandbox_id), params=query_of(wait=None if wait else "false")
            )
        except GONE:
            return False

        return True

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        await self._ask(
            "POST", sandbox_path(sandbox_id, "timeout"), json={"timeout_seconds": timeout_seconds}
        )

    async def set_labels(self, sandbox_id: str, changes: Mapping[str, str | None]) -> None:
        await self._ask("PATCH", sandbox_path(sandbox_id), json={"metadata": dict(changes)})

    async def pause(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        return await self._change(sandbox_path(sandbox_id, "pause"), files_only=files_only)

    async def resume(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        return await self._change(sandbox_path(sandbox_id, "resume"), files_only=files_only)

    async def _change(self, path: str, *, files_only: bool) -> bool:
        params = query_of(files_only="true" if files_only else None)
        return bool((await self._ask("POST", path, params=params))["changed"])

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        await self._ask("PUT", sandbox_path(sandbox_id, "network"), json=as_data(network))

    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        found = await self._ask("GET", sandbox_path(sandbox_id, "network", "log"))
        return tuple(self._read(EgressRecord, item) for item in found["items"])

    def watch_events(self, sandbox_id: str, after: int | None = None) -> AsyncGenerator[WatchEvents, None]:
        return self._events_of(sandbox_path(sandbox_id, "events"), after=after)

    def watch_sandboxes(
        self, owner: str | None = None, after: int | None = None
    ) -> AsyncGenerator[WatchEvents, None]:
        return self._events_of("/v1/events", owner=owner, after=after)

    async def metrics(self, sandbox_id: str) -> Metrics:
        return self._read(Metrics, await self._ask("GET", sandbox_path(sandbox_id, "metrics")))

    # -- code

    def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        return self._lines(
            event_of,
            "POST",
            sandbox_path(sandbox_id, "executions"),
            json=_execution(request),
            headers=self._origin(request),
        )

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        if request.allow_input or request.tools or request.ask_commit:
            # Questions are asked only in a stream.
            return await super().run(sandbox_id, request)

        path = sandbox_path(sandbox_id, "executions")
        answer = await self._ask("POST", path, json=_execution(request), headers=self._origin(request))
        return self._read(Execution, answer)

    def _origin(self, request: ExecuteRequest) -> dict[str, str]:
        """Returns the headers that name the origin of code to a host daemon; none for a server."""
        given = {"x-fumehood-by": request.by, "x-fumehood-via": request.via} if self._on_behalf else {}
        return {name: value for name, value in given.items() if value}

    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "input")
        await self._ask("POST", path, json={"request_id": answer.request_id, "text": answer.text})

    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "tools")
        body = {"request_id": answer.request_id, "value": answer.value, "error": answer.error}
        await self._ask("POST", path, json=body)

    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "commit")
        await self._ask("POST", path, json={"commit": answer.commit})

    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "interrupt")
        return bool((await self._ask("POST", path))["interrupted"])

    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        place = sandbox_path(sandbox_id, "contexts")

        match call:
            case CreateContext(language=language, cwd=cwd):
                made = await self._ask("POST", place, json={"language": language, "cwd": cwd})
                return (self._read(ContextInfo, made),)
            case ListContexts():
                found = await self._ask("GET", place)
                return tuple(self._read(ContextInfo, item) for item in found["items"])
            case RestartContext(context_id=context_id):
                made = await self._ask("POST", f"{place}/{quoted(context_id)}/restart")
                return (self._read(ContextInfo, made),)
            case RemoveContext(context_id=context_id):
                await self._ask("DELETE", f"{place}/{quoted(context_id)}")
                return ()

    async def checkpoint_call(self, sandbox_id: str, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        return await call_checkpoints(self._ask, self._read, sandbox_id, call)

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        return self._read(Forked, await ask_to_fork(self._ask, sandbox_id, request))

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        return self._read(SandboxInfo, await ask_to_adopt(self._ask, sandbox_id, child_id))

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        runs: list[CaseRun] = []

        for body in judge_bodies(request):
            found = await self._ask("POST", sandbox_path(sandbox_id, "judge"), json=body)
            runs.extend(self._read(CaseRun, run) for run in found["items"])

        return tuple(runs)

    def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        return self._lines(_security_event_of, "GET", sandbox_path(sandbox_id, "audit", "events"))

    async def audit_log(self, sandbox_id: str) -> AuditLog:
        log: AuditLog = self._read(AuditLog, await self._ask("GET", sandbox_path(sandbox_id, "audit")))
        return log

    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        async def pieces() -> AsyncGenerator[bytes, None]:
            async with self._connection.stream("POST", sandbox_path(sandbox_id, "save")) as answer:
                async for piece in answer.aiter_bytes(_PIECE_BYTES):
                    yield piece

        async def begin() -> AsyncGenerator[bytes, None]:
            return pieces()

        return self._items(begin)

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        spec = request.spec

        if not isinstance(spec.template, str):
            raise TemplateError(
                template=spec.template.name,
                reason="a server knows templates only by name",
                hint="build it there with `fumehood template build`, and give its name",
            )

        wish = {**_wish(spec), "limits": as_data(spec.limits_asked)}
        wish["keep_template"] = request.keep_template
        wish["files_only"] = request.files_only
        try:
            file = open(archive, "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise LoadError(reason=f"{archive}: {error.strerror}") from None

        with file:
            form: dict[str, Any] = {
                "data": {"options": json.dumps(wish)},
                "files": {"state": ("state", file)},
            }
            query = self._creation_query(spec)
            return self._read(Loaded, await self._ask("POST", "/v1/sandboxes/load", params=query, **form))

    def _creation_query(self, spec: SandboxSpec) -> Mapping[str, str]:
        """Returns the query about a new sandbox for a host daemon; an empty one for a server."""
        owner = spec.owner if self._on_behalf else None
        return query_of(owner=owner or None, alone="true" if self._has_host_alone else None)

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "record")
        return self._read(Record, await self._ask("GET", path))

    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        place = sandbox_path(sandbox_id, "contexts", question.context_id or DEFAULT_CONTEXT_ID)
        body = _fields(question, without=("context_id",))

        match question:
            case CompleteCode():
                return self._read(CodeCompletion, await self._ask("POST", f"{place}/complete", json=body))
            case InspectCode():
                return self._read(CodeInspection, await self._ask("POST", f"{place}/inspect", json=body))
            case _:
                answer = await self._ask("POST", f"{place}/is_complete", json=body)
                return self._read(CodeCompleteness, answer)

    def send_comm(
        self, sandbox_id: str, message: CommMessage, context_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "comm")
        return self._lines(event_of, "POST", path, json=as_data(message))

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        if not fits_one_request(request):
            return await super().run_once(request)

        body = stateless_body(request)
        return self._read(StatelessReply, await self._ask("POST", "/v1/execute", json=body))

    def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        if not fits_one_request(request):
            return super().stream_once(request)

        return self._lines(stateless_item, "POST", "/v1/execute", json=stateless_body(request))

    def run_many(
        self, requests: Iterable[StatelessRequest], concurrency: int | None = None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        if isinstance(requests, Sequence) and all(map(fits_one_request, requests)):
            return self._run_batches(requests, concurrency)

        return super().run_many(requests, concurrency)

    async def _run_batches(
        self, requests: Sequence[StatelessRequest], concurrency: int | None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        path = "/v1/execute/batch"
        calls = BatchCalls(
            begin=lambda body: self._lines(dict, "POST", path, json=body),
            read_on=lambda name, cursor: self._lines(
                dict, "GET", f"{path}/{quoted(name)}", params=query_of(cursor=cursor)
            ),
            end=lambda name: self._ask("DELETE", f"{path}/{quoted(name)}"),
        )

        for batch in batches_of(requests):
            try:
                async with aclosing(answers_of(batch, calls, concurrency)) as answers:
                    async for numbered in answers:
                        yield numbered
            except FumehoodError:
                # Nothing was begun. Which of them is refused is found by sending each alone.
                async with aclosing(super().run_many([asked for _, asked in batch], concurrency)) as answers:
                    async for index, answer in answers:
                        yield batch[index][0], answer

    async def run_grouped(
        self, name: str, runs: Sequence[GroupedRun]
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        """Have a host daemon begin runs together, and yield the answers as they end; a server refuses this.

        Closing the iterator before the end ends the running ones.

        Args:
            name: A new name for the group, by which `end_grouped` finds its runs.
            runs: The runs.
        """
        body = group_body(name, runs)

        async with aclosing(self._connection.bursts("/v1/host/runs", "POST", json=body)) as found:
            async for lines in found:
                for line in lines:
                    yield self._checked(answer_in, line)

    async def end_grouped(self, name: str, index: int) -> None:
        """End one run of a group."""
        await self._ask("DELETE", f"/v1/host/runs/{quoted(name)}/{index}")

    # -- files

    def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        return self._items(lambda: _ready(self._content(sandbox_id, request)))

    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> FileInfo:
        pieces = chunks if self._is_here() else self._pulled(chunks, asyncio.get_running_loop())
        place = sandbox_path(sandbox_id, "files", "content")
        answer = await self._ask(
            "PUT", place, params={"path": path}, content=_unbroken(pieces), headers=metadata_headers(metadata)
        )
        return self._read(FileInfo, answer)

    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        found = await call_files(self._ask, sandbox_id, call)
        return tuple(self._read(FileInfo, item) for item in found)

    async def watch(self, sandbox_id: str, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        place = sandbox_path(sandbox_id, "files", "watch")
        lines = self._lines(dict, "GET", place, params=watch_query(request))
        # The first line says that the watch has begun.
        await anext(lines)
        return self._changes(lines)

    async def settle_watch(self, sandbox_id: str, name: str) -> int:
        place = sandbox_path(sandbox_id, "files", "watch", "settle")
        answer = await self._ask("POST", place, params={"name": name})
        return self._checked(lambda value: read_value(int, value["changes"]), answer)

    # -- commands and ports

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        place = sandbox_path(sandbox_id, "commands")
        # A host daemon alone has the parameter.
        query = {"own": "true"} if spec.is_own and self._on_behalf else {}
        body = _fields(spec, without=("is_own",))
        return self._read(ProcessInfo, await self._ask("POST", place, json=body, params=query))

    def process_output(
        self, sandbox_id: str, pid: int, after_bytes: int | None = None
    ) -> AsyncGenerator[ProcessEvent, None]:
        place = sandbox_path(sandbox_id, "commands", str(pid), "output")
        return self._lines(process_event_of, "GET", place, params=query_of(after=after_bytes))

    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        place = sandbox_path(sandbox_id, "commands")

        match call:
            case ListProcesses():
                found = await self._ask("GET", place)
                return tuple(self._read(ProcessInfo, item) for item in found["items"])
            case SendStdin(pid=pid, data=data):
                await self._ask("POST", f"{place}/{pid}/stdin", content=data)
            case CloseStdin(pid=pid):
                await self._ask("POST", f"{place}/{pid}/stdin/close")
            case SignalProcess(pid=pid, signal=number):
                await self._ask("POST", f"{place}/{pid}/signal", json={"signal": number})
            case ResizePty(pid=pid, size=size):
                await self._ask("POST", f"{place}/{pid}/resize", json=as_data(size))

        return ()

    async def open_port(self, sandbox_id: str, port: int) -> ByteStream:
        path = sandbox_path(sandbox_id, "tunnels", str(port))
        stream = await self._do(self._connection.tunnel, path, sandbox_id)
        return stream if self._is_here() else DistantStream(stream, self._do)

    async def listen_port(self, sandbox_id: str, port: int) -> None:
        await self._ask("POST", sandbox_path(sandbox_id, "listeners", str(port)))

    async def accept_port(self, sandbox_id: str, port: int) -> ByteStream:
        path = sandbox_path(sandbox_id, "listeners", str(port), "next")

        async def accept() -> ByteStream:
            stream = await self._connection.tunnel(path, sandbox_id)
            try:
                # The server accepts first, so that it learns when a client stops waiting.
                said = await stream.read()
            except BaseException:
                await stream.close()
                raise

            if said != ARRIVED:
                await stream.close()
                raise self._unfit(DataError("the wait for a connection ended without one"))

            return stream

        stream = await self._do_or_undo(accept, lambda opened: opened.close())
        return stream if self._is_here() else DistantStream(stream, self._do)

    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        signed = await self._ask("POST", sandbox_path(sandbox_id, "ports", str(port), "sign"), json={})
        return self._read(PortAddress, signed)

    async def aclose(self) -> None:
        """Close the connections; the sandboxes live on at the server."""
        await self._do(self._connection.aclose)

    # -- requests

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        return await self._do(lambda: self._connection.ask(method, path, **options))

    async def _ask_bytes(self, method: str, path: str, **options: Any) -> bytes:
        async def ask() -> bytes:
            content = bytearray()

            async with self._connection.stream(method, path, **options) as answer:
                async for piece in answer.aiter_bytes():
                    content += piece

                    if len(content) > _MAX_RESULT_BYTES:
                        raise self._unfit(DataError(f"it has more than {_MAX_RESULT_BYTES:,} bytes"))

            return bytes(content)

        return await self._do(ask)

    def _lines(
        self, read: Callable[[dict[str, Any]], _T], method: str, path: str, **options: Any
    ) -> AsyncGenerator[_T, None]:
        async def lines() -> AsyncGenerator[_T, None]:
            async with aclosing(self._connection.lines(method, path, **options)) as found:
                async for line in found:
                    yield self._checked(read, line)

        return self._items(lambda: _ready(lines()))

    def _events_of(self, path: str, **params: Any) -> AsyncGenerator[WatchEvents, None]:
        async def bursts() -> AsyncGenerator[WatchEvents, None]:
            async with aclosing(self._connection.bursts(path, params=query_of(**params))) as found:
                async for lines in found:
                    events = WatchEvents(self._checked(watch_event_of, line) for line in lines)

                    # As the engine does it: what is here already comes alone.
                    if events[0].type == "here" and len(events) > 1:
                        yield WatchEvents(events[:1])
                        events = WatchEvents(events[1:])

                    yield events

        return self._items(lambda: _ready(bursts()))

    async def _content(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        if request.length_bytes == 0:
            await self._connection.ask(
                "GET", sandbox_path(sandbox_id, "files", "info"), params={"path": request.path}
            )
            return

        last = "" if request.length_bytes is None else request.offset_bytes + request.length_bytes - 1
        is_whole = request.offset_bytes == 0 and request.length_bytes is None
        headers = {} if is_whole else {"Range": f"bytes={request.offset_bytes}-{last}"}
        headers |= _share_headers(request.share) | _volume_headers(request.volume)
        place = sandbox_path(sandbox_id, "files", "content")

        async with self._connection.stream(
            "GET", place, params={"path": request.path}, headers=headers, past_the_end=(416,)
        ) as answer:
            if answer.status_code != 416:
                async for piece in answer.aiter_bytes(_MAX_PIECE_BYTES):
                    yield piece

    async def _changes(self, lines: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[FileChange, None]:
        async with aclosing(lines):
            async for line in lines:
                yield self._read(FileChange, line)

    def _read(self, kind: type[_T], data: object) -> _T:
        return self._checked(lambda value: read_value(kind, value), data)

    def _checked(self, read: Callable[[Any], _T], data: object) -> _T:
        try:
            return read(data)
        except DataError as error:
            raise self._unfit(error) from None

    def _unfit(self, error: DataError) -> HostUnavailableError:
        return HostUnavailableError(
            host=self._connection.address.name,
            reason=f"its answer does not fit: {error}",
            outcome_unknown=True,
        )


def connect_to_host(socket_path: str) -> HttpBackend:
    """Return the backend of a host daemon's unix socket, on the running loop; the daemon may start later."""
    address = ServerAddress(url="http://host", socket_path=socket_path, is_host=True)
    return HttpBackend(address, asyncio.get_running_loop())


async def _ready(items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    return items


async def _unbroken(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the pieces without empty ones, since an empty piece would end a chunked body."""
    async for piece in pieces:
        if piece:
            yield bytes(piece)


def _share_headers(share: str) -> dict[str, str]:
    """Returns the header that names the share of the caller to a host daemon; empty for a server."""
    return {"x-fumehood-share": share} if share else {}


def _volume_headers(volume: str) -> dict[str, str]:
    """Returns the header that tells a host daemon for which volume a file is read; empty for a server."""
    return {"x-fumehood-volume": volume} if volume else {}


def _fields(value: object, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    data = as_data(value)
    assert isinstance(data, dict)
    return {name: item for name, item in data.items() if name not in without}


def _wish(spec: SandboxSpec) -> dict[str, Any]:
    """Returns the fields of a new sandbox that the caller has chosen.

    The others have the same default on the other side, which may be of an earlier version that does not know them.
    """
    ordinary = _fields(SandboxSpec())
    data = _fields(spec, without=("owner", "chosen_limits", "limits"))
    return {name: item for name, item in data.items() if item != ordinary[name]}


def _execution(request: ExecuteRequest) -> dict[str, Any]:
    data = _fields(request, without=("wall_seconds", "by", "via"))
    return {**data, "timeout_seconds": request.wall_seconds}
