"""One piece of code in a sandbox of its own, as one request: files in, code, files out.

Used on both sides of the port. `run_once` is the whole life of such a sandbox, told over the verbs of any
backend; a backend that can do it in one go (a server elsewhere) overrides `Backend.run_once` instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fumehood.bounds import MIB
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError, SandboxClosedError
from fumehood.values.checks import check_integer, check_path
from fumehood.values.events import Event, ExecutionFinished
from fumehood.values.execution import Execution
from fumehood.values.requests import ExecuteRequest, ListFiles, ReadFile, SandboxSpec, StatFile
from fumehood.values.sandbox import FileInfo, Isolation, SandboxInfo

if TYPE_CHECKING:
    from fumehood.port.backend import Backend

DEFAULT_OUTPUT_BYTES = 32 * MIB
_MAX_FILES = 1000
_MAX_FILES_BYTES = 256 * MIB
_PIECE_BYTES = 1 * MIB
_DEEPEST = 64
_RUNS_PER_CORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessRequest:
    """What to run, in what, with which files.

    Attributes:
        spec: The sandbox.
        code: What runs in it.
        stdin: What `input()` and the standard input get, up to its end; None: as `code` says.
        files: Content by path, written before the code runs.
        outputs: Paths of files, or of directories for all files below them, that are read after it has run; what
            is not there is left out.
        max_output_bytes: How much of them at most; what does not fit is named in `StatelessReply.skipped`.
    """

    spec: SandboxSpec
    code: ExecuteRequest
    stdin: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES

    def __post_init__(self) -> None:
        check_integer("max_output_bytes", self.max_output_bytes, low=0, high=_MAX_FILES_BYTES)

        if self.code.allow_input:
            raise InvalidArgumentError(
                field="allow_input", value=True, allowed="False here, where nobody can answer: give `stdin`"
            )

        if self.code.tools:
            raise InvalidArgumentError(
                field="tools",
                value=[tool.name for tool in self.code.tools],
                allowed="() here, where nobody can answer a call",
            )

        if self.code.ask_commit:
            raise InvalidArgumentError(
                field="ask_commit", value=True, allowed="False here, where nobody decides"
            )

        # The bounds of the input are those of the code that gets it.
        self.whole_code()

        if len(self.files) > _MAX_FILES or len(self.outputs) > _MAX_FILES:
            raise InvalidArgumentError(
                field="files", value=len(self.files), allowed=f"at most {_MAX_FILES} files"
            )

        for path in (*self.files, *self.outputs):
            check_path("files", path)

        if (size := sum(map(len, self.files.values()))) > _MAX_FILES_BYTES:
            raise InvalidArgumentError(
                field="files", value=f"{size} bytes", allowed=f"at most {_MAX_FILES_BYTES} bytes"
            )

    def whole_code(self) -> ExecuteRequest:
        """Return the code with its input."""
        return self.code if self.stdin is None else replace(self.code, stdin=self.stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessReply:
    """What it did.

    Attributes:
        execution: The record of the execution.
        isolation: What stood between it and the host.
        files: Content by path, of what `outputs` named; what lies below a directory by the directory's path, as
            it was given, and the path in it.
        skipped: Paths that `outputs` named and that did not fit, or could not be read.
    """

    execution: Execution
    isolation: Isolation
    files: Mapping[str, bytes] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


async def run_once(backend: Backend, request: StatelessRequest) -> StatelessReply:
    """Run code in a sandbox of its own, over the verbs of any backend."""
    info = await backend.create(request.spec)

    try:
        await _write_files(backend, info, request)
        execution = await backend.run(info.id, request.whole_code())
        return await _reply(backend, info, request, execution)
    finally:
        await _end(backend, info)


async def stream_once(
    backend: Backend, request: StatelessRequest
) -> AsyncGenerator[Event | StatelessReply, None]:
    """Run code in a sandbox of its own and give what happens as it happens."""
    info = await backend.create(request.spec)
    execution: Execution | None = None

    try:
        await _write_files(backend, info, request)

        async with aclosing(backend.execute(info.id, request.whole_code())) as events:
            async for event in events:
                if isinstance(event, ExecutionFinished):
                    execution = event.execution

                yield event

        if execution is None:
            # The port promises ExecutionFinished or an exception; what breaks the promise is gone.
            raise SandboxClosedError(sandbox_id=info.id, reason="died", outcome_unknown=True)

        yield await _reply(backend, info, request, execution)
    finally:
        await _end(backend, info)


async def run_many(
    backend: Backend, requests: Iterable[StatelessRequest], concurrency: int | None = None
) -> AsyncGenerator[tuple[int, StatelessReply | FumehoodError], None]:
    """Run each request in a sandbox of its own, a few at a time."""
    if concurrency is None:
        concurrency = _RUNS_PER_CORE * (os.cpu_count() or 1)

    check_integer("concurrency", concurrency, low=1, high=_MAX_FILES)
    left = enumerate(requests)
    running: set[asyncio.Task[tuple[int, StatelessReply | FumehoodError]]] = set()

    try:
        while True:
            while len(running) < concurrency and (numbered := next(left, None)) is not None:
                running.add(asyncio.create_task(_answered(backend, *numbered)))

            if not running:
                return

            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()

        await asyncio.gather(*running, return_exceptions=True)


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
    # Its end is certain; that the kernel has taken everything back need not be waited for. A caller who gives
    # up twice does not keep the sandbox alive.
    await asyncio.shield(backend.kill(info.id, wait=False))


class _Collection:
    """What an ended execution has left behind, as far as it fits."""

    def __init__(self, backend: Backend, sandbox_id: str, max_bytes: int) -> None:
        self.files: dict[str, bytes] = {}
        # In the order of finding; a guest can leave more names than anybody wants to read.
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
            # It is not there, or not for the sandbox's user.
            return

    async def _add_below(self, path: str, folder: FileInfo) -> None:
        inside = f"{folder.path.rstrip('/')}/"

        for info in await self._backend.file_call(
            self._sandbox_id, ListFiles(path=folder.path, depth=_DEEPEST)
        ):
            relative = info.path.removeprefix(inside)

            # The names are the guest's: none of them leads out of the directory.
            if info.type == "file" and info.path.startswith(inside) and ".." not in relative.split("/"):
                await self._add_file(f"{path.rstrip('/')}/{relative}", info)

    async def _add_file(self, name: str, info: FileInfo) -> None:
        if name in self.files:
            return

        content = None

        if info.type == "file" and info.size_bytes <= self._bytes_left and len(self.files) < _MAX_FILES:
            content = await self._content(info.path)

        if content is not None:
            self.files[name] = content
            self._bytes_left -= len(content)
        elif len(self.skipped) < _MAX_FILES:
            self.skipped[name] = None

    async def _content(self, path: str) -> bytes | None:
        """What is in a file, or None if that does not fit: it can have grown since it was described."""
        content = bytearray()
        request = ReadFile(path=path, length_bytes=self._bytes_left + 1)
        try:
            async with aclosing(self._backend.read(self._sandbox_id, request)) as pieces:
                async for piece in pieces:
                    content += piece
        except FileError:
            return None

        return bytes(content) if len(content) <= self._bytes_left else None
