"""The port between the user's objects and the backend of their sandboxes.

`AsyncSandbox` uses only this interface, a server exposes it, and an HTTP client or a cluster implements it by
forwarding. So every argument and every result is a plain value that can cross a process boundary, sandboxes are named
by id, and no verb returns a live object other than an iterator. Rules that every implementation keeps, and that the
contract tests check:

- Every verb but `kill` raises SandboxNotFoundError for an unknown id, and SandboxClosedError with the reason for a
  sandbox that has ended.
- A paused sandbox is resumed first if its spec requests that; otherwise the verb raises SandboxPausedError, unless it
  documents something else.
- Verbs may be awaited from any asyncio loop, several at a time.
- Cancelling a verb never leaves it half done: it is completed or undone, or the sandbox is killed.
- Iterators are closed with `aclose()`; closing one early ends its work if its verb documents that.
  Each item may be awaited in another task: no iterator keeps a cancel scope open between items.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import TypeVar

from fumehood.bounds import MIB
from fumehood.cancellation import cancel_and_wait, complete
from fumehood.errors import FileError, FumehoodError, SandboxClosedError
from fumehood.values.audit import AuditLog
from fumehood.values.checks import check_integer
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution, Record
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.looking import ListSandboxes, Look, SandboxList
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
    StatFile,
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
from fumehood.values.stateless import MAX_STATELESS_FILES, StatelessReply, StatelessRequest
from fumehood.values.watching import WatchEvents

_Answer = TypeVar("_Answer")
_PIECE_BYTES = 1 * MIB
_DEEPEST = 64
_RUNS_PER_CORE = 2
_MAX_CONCURRENCY = 1000
# The first message to a client that waits for a connection out of a sandbox, over HTTP.
ARRIVED = b"+"


class ByteStream(ABC):
    """A connection in both directions, each of which can be ended on its own.

    One task may read while another writes; two must not do the same at once. With `async with`, it is closed at the
    end.
    """

    @abstractmethod
    async def read(self) -> bytes:
        """Return received bytes, at most 64 KiB; b"" at the end, also for later calls.

        Raises:
            SandboxClosedError: The sandbox ended before the other side did.
            HostUnavailableError: The connection to the sandbox's server broke off.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the other side does not read them.

        Raises:
            BrokenPipeError: The other side has closed, or `end` or `close` was called before.
            SandboxClosedError: The sandbox has ended.
        """

    @abstractmethod
    async def end(self) -> None:
        """End the sending direction: the other side reads its end, and can still send; a second call does nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection in both directions; a second call does nothing."""

    async def __aenter__(self) -> ByteStream:
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.close()


class Backend(ABC):
    """A backend of sandboxes: the interface that the engine and the HTTP client implement."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Start a sandbox and return it when it is ready to run code.

        Raises:
            SandboxStartError: The sandbox did not start; the subclasses IsolationUnavailableError, TemplateError and
                CapacityError say why.
        """

    @abstractmethod
    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Describe a living sandbox, paused or not."""

    @abstractmethod
    async def list(self, owner: str | None = None) -> tuple[SandboxInfo, ...]:
        """Describe all living sandboxes, or those of one owner, the oldest first."""

    @abstractmethod
    async def page(self, request: ListSandboxes) -> SandboxList:
        """Describe a page of the living sandboxes, in the order that the request names.

        A page begins after the last sandbox of the previous page, even if sandboxes were made or ended meanwhile.

        Raises:
            InvalidArgumentError: The cursor does not come from an earlier page.
        """

    @abstractmethod
    async def look(self, sandbox_id: str, request: Look[_Answer]) -> _Answer:
        """Answer a question about a sandbox, paused or not, without changing the sandbox.

        The sandbox is not resumed, its lifetime and its record do not change, and no other call to it has to wait.

        Raises:
            ContextNotFoundError: The question names a context that does not live.
            ExecutionNotFoundError: The question names an execution that is not known, or no longer.
        """

    @abstractmethod
    async def capacity(self) -> Capacity:
        """Return the capacity of the host, and how much of it is taken."""

    @abstractmethod
    async def kill(self, sandbox_id: str, *, wait: bool = True) -> bool:
        """End a sandbox, paused or not, and everything in it. False if it was not alive.

        Args:
            sandbox_id: The sandbox.
            wait: Whether to return only when no process of it is left; otherwise as soon as its end is certain.
        """

    @abstractmethod
    async def set_timeout(self, sandbox_id: str, timeout_seconds: float | None) -> None:
        """Set the remaining lifetime of a sandbox, counted from now; None: it lives until it is killed.

        For a paused sandbox this is the time that it has after it is resumed.
        """

    @abstractmethod
    async def set_labels(self, sandbox_id: str, changes: Mapping[str, str | None]) -> None:
        """Change the named labels of a sandbox, paused or not; the value None removes a label.

        Other labels do not change.

        Raises:
            InvalidArgumentError: All labels together would be too large.
        """

    @abstractmethod
    async def pause(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        """Freeze a sandbox: no process in it runs, and all its clocks are stopped. False if it was paused already.

        Its processes and their memory stay as they are. Calls that are under way continue when it is resumed. With
        `files_only` its processes are ended first, and running executions end as `context_died`; when it is resumed,
        each context gets a fresh process, and the files are kept.
        """

    @abstractmethod
    async def resume(self, sandbox_id: str, *, files_only: bool = False) -> bool:
        """Resume a paused sandbox, with the lifetime that it had left. False if it was running.

        With `files_only` the processes that the pause has kept are ended, as if it had been paused with `files_only`.
        """

    @abstractmethod
    async def set_network(self, sandbox_id: str, network: Network) -> None:
        """Change the network policy of a sandbox; connections that it no longer allows are closed.

        Running processes keep their environment. Secrets without a value keep their present value.

        Raises:
            InvalidArgumentError: The policy cannot be carried out on the sandbox's host.
        """

    @abstractmethod
    async def egress_log(self, sandbox_id: str) -> tuple[EgressRecord, ...]:
        """Return the connections of a sandbox, paused or not: the last 1000 allowed and the last 1000 denied."""

    @abstractmethod
    async def audit_log(self, sandbox_id: str) -> AuditLog:
        """Return the newest entries of a sandbox's audit record.

        The sandbox may be paused, or have ended recently.
        """

    @abstractmethod
    def security_events(self, sandbox_id: str) -> AsyncGenerator[SecurityEvent, None]:
        """Yield the last 1000 security events of a sandbox, paused or not, then each new one until it ends."""

    @abstractmethod
    def watch_events(self, sandbox_id: str, after: int | None = None) -> AsyncGenerator[WatchEvents, None]:
        """Yield the events of a sandbox, paused or not, in batches: `here` first, `ended` last.

        With `after`, kept events with higher numbers come first, or a `gap` in place of events that are not kept any
        more. A slow reader gets a `gap` too, and never slows the sandbox. Following does not count as use of the
        sandbox.
        """

    @abstractmethod
    def watch_sandboxes(
        self, owner: str | None = None, after: int | None = None
    ) -> AsyncGenerator[WatchEvents, None]:
        """Yield the starts, changes and ends of all sandboxes, or of those of one owner, as `watch_events` does."""

    @abstractmethod
    async def metrics(self, sandbox_id: str) -> Metrics:
        """Return the current resource use of a sandbox, paused or not."""

    @abstractmethod
    def execute(self, sandbox_id: str, request: ExecuteRequest) -> AsyncGenerator[Event, None]:
        """Run code in a context, after earlier requests to that context are done.

        The first event is ExecutionStarted, the last ExecutionFinished. Closing the iterator before the end interrupts
        the execution as `interrupt` does (or takes it out of the queue) and returns when the context is idle again.

        Raises:
            ContextNotFoundError: The request names a context that does not live.
        """

    async def run(self, sandbox_id: str, request: ExecuteRequest) -> Execution:
        """Run code to its end, for a caller that needs no events; otherwise the same as `execute`.

        A backend that can omit the events does so here.
        """
        async with aclosing(self.execute(sandbox_id, request)) as events:
            async for event in events:
                if isinstance(event, ExecutionFinished):
                    return event.execution

        # The port promises ExecutionFinished or an exception; a backend that breaks the promise is gone.
        raise SandboxClosedError(sandbox_id=sandbox_id, reason="died", outcome_unknown=True)

    @abstractmethod
    async def answer_input(self, sandbox_id: str, answer: InputAnswer) -> None:
        """Answer an InputRequestEvent; an answer that arrives too late is dropped."""

    @abstractmethod
    async def answer_tool(self, sandbox_id: str, answer: ToolAnswer) -> None:
        """Answer a ToolCallEvent; an answer that arrives too late is dropped.

        A paused sandbox receives the answer too, and reads it when it is resumed.
        """

    @abstractmethod
    async def interrupt(self, sandbox_id: str, context_id: str | None) -> bool:
        """Interrupt the code of a context (None: the default one); False if none runs.

        The code gets SIGINT; if it does not stop within the grace period it is killed, and its context replaced.

        Raises:
            ContextNotFoundError: The context does not live.
        """

    @abstractmethod
    async def context_call(self, sandbox_id: str, call: ContextCall) -> tuple[ContextInfo, ...]:
        """Create, list, restart or remove contexts; the class of the call defines the answer.

        Raises:
            ContextNotFoundError: The call names a context that does not live.
        """

    @abstractmethod
    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the lasting parts of a sandbox, as one file, in pieces.

        These are its files, its environment, its records, and the variables that can be serialised. The call waits,
        like an execution, until no context runs code; variables and files are of that one moment, even if they change
        afterwards. Closing the iterator early leaves nothing behind.

        Raises:
            SaveError: A context does not answer, or the files cannot be kept; the sandbox was not changed.
        """

    @abstractmethod
    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox from a saved state, which is a file of this machine.

        Its records begin with the cells that were saved. If loading fails, no sandbox is left.

        Raises:
            SavedStateDamagedError: The file was changed or truncated after it was written.
            SavedStateVersionError: The file has a version that is not supported here.
            LoadError: The state cannot be loaded.
            SandboxStartError: See `Backend.create`.
        """

    @abstractmethod
    async def record(self, sandbox_id: str, context_id: str | None) -> Record:
        """Return the record of a context (None: the default one): its executions, in order.

        A paused sandbox stays paused. Silent executions and comm messages are not in it. The records of a sandbox take
        16 MiB at most: the oldest outputs are dropped first, then the oldest cells, and both are counted.

        Raises:
            ContextNotFoundError: The context does not live.
        """

    @abstractmethod
    async def answer_commit(self, sandbox_id: str, answer: CommitAnswer) -> None:
        """Answer a CommitRequestEvent; an answer that arrives too late is dropped."""

    @abstractmethod
    async def checkpoint_call(self, sandbox_id: str, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
        """Make, list, go back to or drop checkpoints; each call documents its answer.

        Making a checkpoint and going back to one wait, like executions, until earlier requests to the context are done.
        Going back restores the state of the context and all writable files together; other contexts and commands
        continue. At most 16 checkpoints are kept: then the oldest is dropped.

        Raises:
            ContextNotFoundError: The call names a context that does not live.
            CheckpointNotFoundError: No checkpoint has this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended the checkpoint; the sandbox is
                unchanged.
            CheckpointError: The checkpoint cannot be made or restored; the sandbox is unchanged.
        """

    @abstractmethod
    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Make sandboxes that continue from the state of this one: its default context and all writable files.

        The forks are sandboxes like any other, with the limits, network, environment, owner and record of this one, and
        continue to live when it ends. Other contexts and running commands are not forked. The call waits, like an
        execution, until earlier requests to the context are done; this sandbox then continues. Either all forks are
        made, or none.

        Raises:
            CheckpointNotFoundError: The request names a checkpoint that does not exist.
            CheckpointLostError: That checkpoint has ended.
            ForkDepthError: The sandbox is already nested too deeply as a fork of forks.
            ForkError: The forks cannot be made.
            CapacityError: There is no room for so many sandboxes.
        """

    @abstractmethod
    async def adopt(self, sandbox_id: str, child_id: str) -> SandboxInfo:
        """Replace a sandbox by one of its forks, which takes over its id; lifetime and labels are the fork's.

        The replaced sandbox is killed. The fork's own id then counts as ended, with the reason `adopted`.

        Raises:
            InvalidArgumentError: `child_id` is not a fork of this sandbox.
            ForkError: The replacement failed; both sandboxes are unchanged.
        """

    @abstractmethod
    async def judge(self, sandbox_id: str, request: JudgeRequest) -> tuple[CaseRun, ...]:
        """Run a program once for each input, each time in a process of its own.

        The results are in the order of the inputs.

        The imports at the top of the program are made once, before the cases. All cases share the files, which are
        restored at the end. The call does not wait for contexts, and does not affect them.

        Raises:
            CheckpointError: The program could not be prepared, or code in the sandbox has ended the prepared process.
        """

    @abstractmethod
    def read(self, sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces of at most 1 MiB.

        Raises:
            FileError: The subclass names the reason; raised at the first piece.
        """

    @abstractmethod
    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> FileInfo:
        """Write a file from pieces of any size; missing parent folders are made.

        An existing file and its metadata are replaced only when all content is written.

        Args:
            sandbox_id: The sandbox.
            path: The path of the file in the sandbox.
            chunks: The content.
            metadata: The metadata of the file, as `FileInfo.metadata` shows it, checked by `check_metadata`.

        Raises:
            FileError: The subclass names the reason; the old content is unchanged.
        """

    @abstractmethod
    async def file_call(self, sandbox_id: str, call: FileCall) -> tuple[FileInfo, ...]:
        """Describe, list, make, remove or rename files; the class of the call defines the answer.

        Raises:
            FileError: The subclass names the reason.
        """

    @abstractmethod
    async def watch(self, sandbox_id: str, request: WatchFiles) -> AsyncGenerator[FileChange, None]:
        """Watch a directory: the iterator yields each change from the moment this call has returned.

        Closing the iterator ends the watch.

        Raises:
            FileError: PathNotFoundError or PathNotDirectoryError.
        """

    @abstractmethod
    async def settle_watch(self, sandbox_id: str, name: str) -> int:
        """Return how many changes a watch has reported since it began, including all changes before this call.

        A reader that has received this many changes has missed none.

        Raises:
            InvalidArgumentError: No watch has this name.
        """

    @abstractmethod
    async def start_process(self, sandbox_id: str, spec: ProcessSpec) -> ProcessInfo:
        """Start a command; it runs until it ends by itself, is killed, reaches its time limit or the sandbox ends.

        Raises:
            CommandStartError: The program or the directory does not exist.
        """

    @abstractmethod
    def process_output(
        self, sandbox_id: str, pid: int, after_bytes: int | None = None
    ) -> AsyncGenerator[ProcessEvent, None]:
        """Follow a command: yield its kept output so far, then new output, and finally ProcessExited.

        Output is read even if no caller follows, and the first `limits.stdout_bytes` (`stderr_bytes`) of each stream
        are kept and passed on. A terminal has no such limit: it blocks while 1 MiB is unread, and keeps the last 256
        KiB of the output that was read. For a terminal, `after_bytes` is the position, in bytes of all its output, at
        which to start; bytes after it that are not kept any more are counted in `skipped_bytes`. Without `after_bytes`,
        the unread output is returned. Several callers may follow one command. A command can be followed until 30 s
        after its end. Closing the iterator does not affect the command.

        Raises:
            ProcessNotFoundError: No command with this pid runs or has ended recently.
        """

    @abstractmethod
    async def process_call(self, sandbox_id: str, call: ProcessCall) -> tuple[ProcessInfo, ...]:
        """List commands, or feed, signal or resize one; the class of the call defines the answer.

        Raises:
            ProcessNotFoundError: No command with this pid runs.
        """

    @abstractmethod
    async def ask(self, sandbox_id: str, question: Question) -> Answer:
        """Send a question about code to a context: CompleteCode, InspectCode or CheckComplete.

        The question waits, like an execution, until earlier requests to the context are done. An answer that takes
        longer than 5 s is replaced by the empty answer: nothing found, or "unknown". A language that cannot answer the
        question gives the empty answer too.

        Raises:
            ContextNotFoundError: The question names a context that does not live.
        """

    @abstractmethod
    def send_comm(
        self, sandbox_id: str, message: CommMessage, context_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send a comm message to a context (None: the default one), whose code handles it as `execute` runs code.

        Output and messages of the handlers arrive as events, between ExecutionStarted and ExecutionFinished. A message
        to a comm that the context does not know, or to a language without comms, does nothing and is no error. Closing
        the iterator early interrupts the handlers.

        Raises:
            ContextNotFoundError: The context does not live.
        """

    @abstractmethod
    async def open_port(self, sandbox_id: str, port: int) -> ByteStream:
        """Connect to a TCP port on the sandbox's loopback: 127.0.0.1, or else ::1.

        Raises:
            PortClosedError: No program listens on the port.
            OverloadedError: The sandbox has 128 open connections, which is the maximum.
        """

    @abstractmethod
    async def listen_port(self, sandbox_id: str, port: int) -> None:
        """Listen on a TCP port of the sandbox's loopback, 127.0.0.1, until the sandbox ends.

        A second call does nothing.

        Programs inside that connect to it wait for `accept_port`. If the sandbox is paused, this waits until it is
        resumed.

        Raises:
            InvalidArgumentError: A program in the sandbox listens on the port, the host listens on four ports already,
                or the sandbox has no network of its own.
        """

    @abstractmethod
    async def accept_port(self, sandbox_id: str, port: int) -> ByteStream:
        """Listen on a port as `listen_port` does, and return the next connection that a program inside makes to it.

        A paused sandbox stays paused. Data that is sent over the connection does not count as use of the sandbox. At
        most 16 connections to a port are open or waiting at once, and further ones wait in the sandbox; at most 20 a
        second are returned.
        """

    @abstractmethod
    async def port_address(self, sandbox_id: str, port: int) -> PortAddress:
        """Return the address of a TCP port of the sandbox from outside; no process needs to listen there yet.

        The port of a sandbox in this process is reached on this machine's loopback until the sandbox ends; that of a
        server's sandbox by an address of the server, which gives access to this port only and expires.
        """

    async def run_once(self, request: StatelessRequest) -> StatelessReply:
        """Run code in a sandbox of its own, which is killed afterwards.

        A backend that can do it in one step does so here.
        """
        info = await self.create(replace(request.spec, is_recorded=False))

        try:
            await _write_files(self, info, request)
            execution = await self.run(info.id, request.whole_code())
            return await _reply(self, info, request, execution)
        finally:
            await _end(self, info)

    async def stream_once(self, request: StatelessRequest) -> AsyncGenerator[Event | StatelessReply, None]:
        """Do what `run_once` does, and yield events as they happen; the last item is the reply.

        Closing the iterator before the end kills the sandbox.
        """
        info = await self.create(replace(request.spec, is_recorded=False))
        execution: Execution | None = None

        try:
            await _write_files(self, info, request)

            async with aclosing(self.execute(info.id, request.whole_code())) as events:
                async for event in events:
                    if isinstance(event, ExecutionFinished):
                        execution = event.execution

                    yield event

            if execution is None:
                # The port promises ExecutionFinished or an exception; a backend that breaks the promise is gone.
                raise SandboxClosedError(sandbox_id=info.id, reason="died", outcome_unknown=True)

            yield await _reply(self, info, request, execution)
        finally:
            await _end(self, info)

    async def run_many(
        self, requests: Iterable[StatelessRequest], concurrency: int | None = None
    ) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
        """Do what `run_once` does with each request, and yield each answer, with its number, when it is available.

        For a request that fails, the answer is its error; the others continue. Closing the iterator before the end
        kills the sandboxes of running requests, and begins no further request.

        Args:
            requests: The requests, taken one by one when there is room.
            concurrency: How many run at the same time; None: twice as many as there are processors.
        """
        if concurrency is None:
            concurrency = _RUNS_PER_CORE * (os.cpu_count() or 1)

        check_integer("concurrency", concurrency, low=1, high=_MAX_CONCURRENCY)
        left = enumerate(requests)
        running: set[asyncio.Task[tuple[int, StatelessReply | FumehoodError]]] = set()

        try:
            while True:
                while len(running) < concurrency and (numbered := next(left, None)) is not None:
                    running.add(asyncio.create_task(_answered(self, *numbered)))

                if not running:
                    return

                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

                for task in done:
                    yield task.result()
        finally:
            await cancel_and_wait(*running)

    @abstractmethod
    async def aclose(self) -> None:
        """End all sandboxes and release every resource; the backend cannot be used afterwards."""


# -- one piece of code in a sandbox of its own, over the verbs of any backend


async def _answered(
    backend: Backend, number: int, request: StatelessRequest
) -> tuple[int, StatelessReply | FumehoodError]:
    try:
        return number, await backend.run_once(request)
    except FumehoodError as error:
        return number, error


async def _write_files(backend: Backend, info: SandboxInfo, request: StatelessRequest) -> None:
    for path, content in request.files.items():
        await backend.write(info.id, path, _pieces(content))


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


async def _reply(
    backend: Backend, info: SandboxInfo, request: StatelessRequest, execution: Execution
) -> StatelessReply:
    collection = _Collection(backend, info.id, request.max_output_bytes)

    for path in request.outputs:
        await collection.add(path)

    return StatelessReply(
        execution=execution,
        isolation=info.isolation,
        files=collection.files,
        skipped=tuple(collection.skipped),
    )


async def _end(backend: Backend, info: SandboxInfo) -> None:
    # Its end is certain; that the kernel has taken everything back need not be waited for. A caller that is
    # cancelled twice does not keep the sandbox alive.
    await complete(backend.kill(info.id, wait=False))


class _Collection:
    """Collects the output files of an ended execution, within the bounds of a reply."""

    def __init__(self, backend: Backend, sandbox_id: str, max_bytes: int) -> None:
        self.files: dict[str, bytes] = {}
        # In the order in which they were found; a guest can leave very many names.
        self.skipped: dict[str, None] = {}
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._bytes_left = max_bytes

    async def add(self, path: str) -> None:
        """Reads a file, or all files below a directory."""
        try:
            (info,) = await self._backend.file_call(self._sandbox_id, StatFile(path=path))

            if info.type == "dir":
                await self._add_below(path, info)
            else:
                await self._add_file(path, info)
        except FileError:
            # It does not exist, or the sandbox's user may not read it.
            return

    async def _add_below(self, path: str, folder: FileInfo) -> None:
        inside = f"{folder.path.rstrip('/')}/"

        for info in await self._backend.file_call(
            self._sandbox_id, ListFiles(path=folder.path, depth=_DEEPEST)
        ):
            relative = info.path.removeprefix(inside)

            # The names come from the guest: none of them leads out of the directory.
            if info.type == "file" and info.path.startswith(inside) and ".." not in relative.split("/"):
                await self._add_file(f"{path.rstrip('/')}/{relative}", info)

    async def _add_file(self, name: str, info: FileInfo) -> None:
        if name in self.files:
            return

        content = None

        if (
            info.type == "file"
            and info.size_bytes <= self._bytes_left
            and len(self.files) < MAX_STATELESS_FILES
        ):
            content = await self._content(info.path)

        if content is not None:
            self.files[name] = content
            self._bytes_left -= len(content)
        elif len(self.skipped) < MAX_STATELESS_FILES:
            self.skipped[name] = None

    async def _content(self, path: str) -> bytes | None:
        """Returns the content of a file, or None if it does not fit: the file can have grown since it was described."""
        content = bytearray()
        request = ReadFile(path=path, length_bytes=self._bytes_left + 1)
        try:
            async with aclosing(self._backend.read(self._sandbox_id, request)) as pieces:
                async for piece in pieces:
                    content += piece
        except FileError:
            return None

        return bytes(content) if len(content) <= self._bytes_left else None
