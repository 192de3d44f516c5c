"""Sandboxes that live elsewhere: the port, over a server's native API.

Runs in the process that asks. Each verb is one request; nothing is kept here but connections. What the server
answers is checked and becomes the same values, and the same errors, as those of a sandbox in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fumehood.backends.base import Backend
from fumehood.backends.checkpoint_requests import CheckpointCall, CommitAnswer
from fumehood.backends.fork_requests import Forked, ForkRequest
from fumehood.backends.http_audit import HttpAudit
from fumehood.backends.http_checkpoints import call_checkpoints, judge_bodies
from fumehood.backends.http_connection import HttpConnection, ServerAddress, query_of
from fumehood.backends.http_errors import GONE
from fumehood.backends.http_files import call_files, metadata_headers, watch_query
from fumehood.backends.http_forks import ask_to_adopt, ask_to_fork
from fumehood.backends.http_lines import event_of, process_event_of
from fumehood.backends.http_paths import quoted, sandbox_path
from fumehood.backends.http_saving import HttpStateVerbs
from fumehood.backends.http_stateless import (
    answers_of,
    batches_of,
    fits_one_request,
    stateless_body,
    stateless_item,
)
from fumehood.backends.loop_bound import DistantStream, LoopBound
from fumehood.backends.questions import (
    Answer,
    CodeCompleteness,
    CodeCompletion,
    CodeInspection,
    CommMessage,
    CompleteCode,
    InspectCode,
    Question,
)
from fumehood.backends.requests import (
    DEFAULT_CONTEXT_ID,
    CloseStdin,
    ContextCall,
    CreateContext,
    ExecuteRequest,
    FileCall,
    InputAnswer,
    ListContexts,
    ListProcesses,
    ProcessCall,
    ProcessEvent,
    ProcessSpec,
    ReadFile,
    RemoveContext,
    ResizePty,
    RestartContext,
    SandboxSpec,
    SendStdin,
    SignalProcess,
    WatchFiles,
)
from fumehood.backends.stateless import StatelessReply, StatelessRequest
from fumehood.backends.streams import ByteStream
from fumehood.backends.tool_requests import ToolAnswer
from fumehood.deserialise import DataError, read_value
from fumehood.errors import FumehoodError, TemplateError
from fumehood.events import Event
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
from fumehood.serialise import as_data
from fumehood.service_errors import HostUnavailableError

_T = TypeVar("_T")
_LIST_PAGE = 1000
_MAX_PIECE_BYTES = 1 << 20


class HttpBackend(HttpAudit, HttpStateVerbs, LoopBound, Backend):
    """The sandboxes of a server.

    Args:
        address: Where it is.
        loop: The loop that the connections live on; it runs, or will.
        on_behalf: In whose name sandboxes are made: only a host, whose socket is its owner's alone, listens to it.
    """

    def __init__(
        self, address: ServerAddress, loop: asyncio.AbstractEventLoop, *, on_behalf: bool = False
    ) -> None:
        super().__init__(loop)
        self._connection = HttpConnection(address)
        self._on_behalf = on_behalf

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Start a sandbox; see the port."""
        if not isinstance(spec.template, str):
            raise TemplateError(
                template=spec.template.name,
                reason="a server knows templates only by name",
                hint="build it there with `fumehood template build`, and give its name",
            )

        body = {**_fields(spec, without=("owner", "chosen_limits")), "limits": spec.limits_asked}
        owner = spec.owner if self._on_behalf else None
        answer = await self._ask("POST", "/v1/sandboxes", json=body, params=query_of(owner=owner or None))
        return self._read(SandboxInfo, answer)

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Describe a living sandbox; see the port."""
        return self._read(SandboxInfo, await self._ask("GET", sandbox_path(sandbox_id)))

    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe all living sandboxes; see the port."""
        found: list[SandboxInfo] = []
        cursor: str | None = None

        while True:
            query = query_of(limit=_LIST_PAGE, cursor=cursor, owner=owner if self._on_behalf else None)
            page = await self._ask("GET", "/v1/sandboxes", params=query)
            found.extend(self._read(SandboxInfo, item) for item in page["items"])
            cursor = page["next_cursor"]

            if cursor is None:
                return tuple(info for info in found if owner is None or info.owner == owner)

    async def capacity(self) -> Capacity:
        """Tell what there is room for; see the port."""
        return self._read(Capacity, await self._ask("GET", "/v1/capacity"))

    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        """End a sandbox; see the port."""
        try:
            await self._ask(
                "DELETE", sandbox_path(sandbox_id), params=query_of(wait=None if wait else "false")
            )
        except GONE:
            return False

        return True

    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        """Let a sandbox live for so long from now on; see the port."""
        await self._ask(
            "POST", sandbox_path(sandbox_id, "timeout"), json={"timeout_seconds": timeout_seconds}
        )

    async def pause(self, sandbox_id: str) -> bool:
        """Freeze a sandbox; see the port."""
        return bool((await self._ask("POST", sandbox_path(sandbox_id, "pause")))["changed"])

    async def resume(self, sandbox_id: str) -> bool:
        """Let a paused sandbox go on; see the port."""
        return bool((await self._ask("POST", sandbox_path(sandbox_id, "resume")))["changed"])

    async def set_network(self, sandbox_id: str, network: Network) -> None:
        """Change what a sandbox may reach; see the port."""
        await self._ask("PUT", sandbox_path(sandbox_id, "network"), json=as_data(network))

    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        """Tell what a sandbox reached and tried to reach; see the port."""
        found = await self._ask("GET", sandbox_path(sandbox_id, "network", "log"))
        return tuple(self._read(EgressRecord, item) for item in found["items"])

    async def metrics(self, sandbox_id: str) -> Metrics:
        """Tell what a sandbox uses now; see the port."""
        return self._read(Metrics, await self._ask("GET", sandbox_path(sandbox_id, "metrics")))

    # -- code

    def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        """Run code in a context; see the port."""
        return self._lines(event_of, "POST", sandbox_path(sandbox_id, "executions"), json=_execution(request))

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        """Run code to its end; see the port."""
        if request.allow_input or request.tools or request.ask_commit:
            # Questions come in a stream only.
            return await super().run(sandbox_id, request)

        answer = await self._ask("POST", sandbox_path(sandbox_id, "executions"), json=_execution(request))
        return self._read(Execution, answer)

    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        """Answer a question of running code; see the port."""
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "input")
        await self._ask("POST", path, json={"request_id": answer.request_id, "text": answer.text})

    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        """Answer a call of running code; see the port."""
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "tools")
        body = {"request_id": answer.request_id, "value": answer.value, "error": answer.error}
        await self._ask("POST", path, json=body)

    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        """Answer a CommitRequestEvent; see the port."""
        path = sandbox_path(sandbox_id, "executions", answer.execution_id, "commit")
        await self._ask("POST", path, json={"commit": answer.commit})

    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        """Interrupt what runs in a context; see the port."""
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "interrupt")
        return bool((await self._ask("POST", path))["interrupted"])

    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        """Create, list, restart or remove contexts; see the port."""
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
        """Make, list, go back to or drop checkpoints; see the port."""
        return await call_checkpoints(self._ask, self._read, sandbox_id, call)

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Make sandboxes that go on from the state of this one; see the port."""
        return self._read(Forked, await ask_to_fork(self._ask, sandbox_id, request))

    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        """Let a fork take the place of its parent; see the port."""
        return self._read(SandboxInfo, await ask_to_adopt(self._ask, sandbox_id, child_id))

    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Run a program for many inputs; see the port."""
        runs: list[CaseRun] = []

        for body in judge_bodies(request):
            found = await self._ask("POST", sandbox_path(sandbox_id, "judge"), json=body)
            runs.extend(self._read(CaseRun, run) for run in found["items"])

        return tuple(runs)

    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        """Give the record of a context; see the port."""
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "record")
        return self._read(Record, await self._ask("GET", path))

    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        """Ask a context about code; see the port."""
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
        """Give a comm message to a context; see the port."""
        path = sandbox_path(sandbox_id, "contexts", context_id or DEFAULT_CONTEXT_ID, "comm")
        return self._lines(event_of, "POST", path, json=as_data(message))

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        """Run code in a sandbox of its own, in one request; see the port."""
        if not fits_one_request(request):
            return await super().run_once(request)

        body = stateless_body(request)
        return self._read(StatelessReply, await self._ask("POST", "/v1/execute", json=body))

    def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        """Run code in a sandbox of its own, in one request, and follow it; see the port."""
        if not fits_one_request(request):
            return super().stream_once(request)

        return self._lines(stateless_item, "POST", "/v1/execute", json=stateless_body(request))

    def run_many(
        self, requests: Iterable[StatelessRequest], concurrency: int | None = None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        """Run many pieces of code, those of a list in one request; see the port."""
        if isinstance(requests, Sequence) and all(map(fits_one_request, requests)):
            return self._run_batches(requests, concurrency)

        return super().run_many(requests, concurrency)

    async def _run_batches(
        self, requests: Sequence[StatelessRequest], concurrency: int | None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        def follow(body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
            return self._lines(dict, "POST", "/v1/execute/batch", json=body)

        for batch in batches_of(requests):
            try:
                async with aclosing(answers_of(batch, follow, concurrency)) as answers:
                    async for numbered in answers:
                        yield numbered
            except FumehoodError:
                # Nothing was begun. Which of them is to blame is found by asking for each alone.
                async with aclosing(super().run_many([asked for _, asked in batch], concurrency)) as answers:
                    async for index, answer in answers:
                        yield batch[index][0], answer

    # -- files

    def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces; see the port."""
        return self._items(lambda: _ready(self._content(sandbox_id, request)))

    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> FileInfo:
        """Write a file; see the port."""
        pieces = chunks if self._is_here() else self._pulled(chunks, asyncio.get_running_loop())
        place = sandbox_path(sandbox_id, "files", "content")
        answer = await self._ask(
            "PUT", place, params={"path": path}, content=_unbroken(pieces), headers=metadata_headers(metadata)
        )
        return self._read(FileInfo, answer)

    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        """Describe, list, make, remove or rename; see the port."""
        found = await call_files(self._ask, sandbox_id, call)
        return tuple(self._read(FileInfo, item) for item in found)

    async def watch(self, sandbox_id: str, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        """Watch a directory; see the port."""
        place = sandbox_path(sandbox_id, "files", "watch")
        lines = self._lines(dict, "GET", place, params=watch_query(request))
        # The first line says that the watch has begun.
        await anext(lines)
        return self._changes(lines)

    async def settle_watch(self, sandbox_id: str, name: str) -> int:
        """Have all that has happened told by a watch; see the port."""
        place = sandbox_path(sandbox_id, "files", "watch", "settle")
        answer = await self._ask("POST", place, params={"name": name})
        return self._checked(lambda value: read_value(int, value["changes"]), answer)

    # -- commands and ports

    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        """Start a command; see the port."""
        return self._read(
            ProcessInfo, await self._ask("POST", sandbox_path(sandbox_id, "commands"), json=_fields(spec))
        )

    def process_output(self, sandbox_id: str, pid: int) -> AsyncGenerator[ProcessEvent, None]:
        """Follow a command; see the port."""
        return self._lines(process_event_of, "GET", sandbox_path(sandbox_id, "commands", str(pid), "output"))

    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        """List commands, feed, signal or resize one; see the port."""
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
        """Connect to a port of a sandbox; see the port."""
        path = sandbox_path(sandbox_id, "tunnels", str(port))
        stream = await self._do(self._connection.tunnel, path, sandbox_id)
        return stream if self._is_here() else DistantStream(stream, self._do)

    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        """Tell where a port is reached at the server; see the port."""
        signed = await self._ask("POST", sandbox_path(sandbox_id, "ports", str(port), "sign"), json={})
        return self._read(PortAddress, signed)

    async def aclose(self) -> None:
        """Let go of the connections; the sandboxes live on, since the server keeps them."""
        await self._do(self._connection.aclose)

    # -- requests

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        return await self._do(lambda: self._connection.ask(method, path, **options))

    def _lines(
        self, read: Callable[[dict[str, Any]], _T], method: str, path: str, **options: Any
    ) -> AsyncGenerator[_T, None]:
        async def lines() -> AsyncGenerator[_T, None]:
            async with aclosing(self._connection.lines(method, path, **options)) as found:
                async for line in found:
                    yield self._checked(read, line)

        return self._items(lambda: _ready(lines()))

    async def _content(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        if request.length_bytes == 0:
            await self._connection.ask(
                "GET", sandbox_path(sandbox_id, "files", "info"), params={"path": request.path}
            )
            return

        last = "" if request.length_bytes is None else request.offset_bytes + request.length_bytes - 1
        is_whole = request.offset_bytes == 0 and request.length_bytes is None
        headers = {} if is_whole else {"Range": f"bytes={request.offset_bytes}-{last}"}
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
            raise HostUnavailableError(
                host=self._connection.address.name,
                reason=f"its answer does not fit: {error}",
                outcome_unknown=True,
            ) from None


def connect_to_host(socket_path: str) -> HttpBackend:
    """Return the backend of a host that listens on a unix socket, on the loop that runs; it need not be there yet."""
    address = ServerAddress(url="http://host", socket_path=socket_path)
    return HttpBackend(address, asyncio.get_running_loop(), on_behalf=True)


async def _ready(items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    return items


async def _unbroken(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the pieces; an empty one would end a chunked body."""
    async for piece in pieces:
        if piece:
            yield bytes(piece)


def _fields(value: object, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    data = as_data(value)
    assert isinstance(data, dict)
    return {name: item for name, item in data.items() if name not in without}


def _execution(request: ExecuteRequest) -> dict[str, Any]:
    data = _fields(request, without=("wall_seconds",))
    return {**data, "timeout_seconds": request.wall_seconds}
