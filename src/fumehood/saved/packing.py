"""A sandbox becomes one file: its contexts pickle themselves, and all is streamed out as it is read.

Runs in the host process, over the port. Nothing of a guest is looked into but the lists that it makes, and those are
bounded. The sandbox goes on meanwhile: each context waits while it is written down, and each file is as it was when it
was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import posixpath
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

from fumehood.backends.requests import (
    ListContexts,
    ProcessExited,
    ProcessSpec,
    ReadFile,
    RemoveFile,
    check_envs,
    check_path,
)
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError, SandboxError
from fumehood.limits import GIB, MIB
from fumehood.models import ContextInfo
from fumehood.save_errors import LoadError, SaveError
from fumehood.saved.archive import ArchiveWriter, PartWriter
from fumehood.saved.guest_answers import (
    FoundFile,
    FoundFiles,
    FoundState,
    FoundVariable,
    GuestStepError,
    as_text,
    cannot_last,
    read_answer,
    take_step,
)
from fumehood.saved.manifest import (
    FORMAT,
    MAX_CONTEXTS,
    MAX_FILES,
    MAX_STATE_BYTES,
    VERSION,
    is_writable_place,
    manifest_bytes,
    read_manifest,
)
from fumehood.saved.records import MAX_RECORD_BYTES, record_bytes
from fumehood.saved_state import (
    LeftOut,
    LeftOutKind,
    Manifest,
    SavedContext,
    SavedFile,
    SavedPart,
    SavedVariable,
)

if TYPE_CHECKING:
    from fumehood.backends.base import Backend

_EACH_BYTES = 1 * GIB
_ALL_BYTES = 4 * GIB
_EACH_SECONDS = 10.0
_ALL_SECONDS = 60.0
_MAX_ENVIRONMENT_BYTES = 2 * MIB
# What everything in every sandbox starts with, whoever made it.
_OWN_VARIABLES = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TZ",
        "PATH",
        "SSL_CERT_FILE",
        "PIP_USER",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_NO_CACHE_DIR",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "NODE_USE_ENV_PROXY",
        "LD_LIBRARY_PATH",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    }
)


@dataclass(slots=True)
class _Draft:
    """What is known so far."""

    contexts: list[SavedContext] = field(default_factory=list)
    files: list[SavedFile] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    python: str = ""
    size_bytes: int = 0
    records_bytes: int = 0


async def pack(backend: Backend, sandbox_id: str) -> AsyncGenerator[bytes, None]:
    """Yields the file of a saved state; see the port."""
    packing = _Packing(backend, sandbox_id)
    try:
        async with aclosing(packing.pieces()) as pieces:
            async for piece in pieces:
                if piece:
                    yield piece
    except GuestStepError as error:
        raise SaveError(reason=str(error)) from None
    finally:
        await packing.clean_up()


class _Packing:
    """Writes one saved state."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._folder = f"/tmp/.fumehood-state-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
        self._archive = ArchiveWriter()
        self._draft = _Draft()
        self._parts = 0

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        info = await self._backend.info(self._sandbox_id)

        if why := cannot_last(info):
            raise SaveError(reason=why)

        envs = await self._environment()
        contexts = await self._backend.context_call(self._sandbox_id, ListContexts())

        for number, context in enumerate(contexts[:MAX_CONTEXTS]):
            async with aclosing(self._context(context, f"{self._folder}-{number}")) as pieces:
                async for piece in pieces:
                    yield piece

        for context in contexts[MAX_CONTEXTS:]:
            self._leave_out("context", context.id, f"only {MAX_CONTEXTS} contexts are kept")

        async with aclosing(self._files(contexts[0].id)) as pieces:
            async for piece in pieces:
                yield piece

        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            fumehood=metadata.version("fumehood"),
            python=self._draft.python,
            template=info.template,
            sandbox_id=info.id,
            saved_at=datetime.now(UTC).isoformat(),
            envs=envs,
            contexts=tuple(self._draft.contexts),
            files=tuple(self._draft.files),
            left_out=tuple(self._draft.left_out),
        )
        content = await asyncio.to_thread(manifest_bytes, manifest)
        try:
            # What a guest has said can be of the right form and still make no sense together.
            await asyncio.to_thread(read_manifest, content, self._archive.names)
        except LoadError as error:
            raise SaveError(reason=error.reason) from None

        yield await self._archive.end(content)

    async def clean_up(self) -> None:
        """Removes what the contexts have left for us."""
        places = [
            self._folder,
            *(f"{self._folder}-{number}" for number in range(len(self._draft.contexts) + 1)),
        ]

        for place in places:
            # It has ended, is paused, or the folder never was: what is left is the sandbox's.
            with contextlib.suppress(FumehoodError):
                await self._backend.file_call(self._sandbox_id, RemoveFile(path=place))

    # -- contexts

    async def _context(self, context: ContextInfo, folder: str) -> AsyncGenerator[bytes, None]:
        kept = SavedContext(id=context.id, language=context.language, cwd=context.cwd)

        if context.language == "python":
            bounds = (_EACH_BYTES, _ALL_BYTES, _EACH_SECONDS, _ALL_SECONDS)
            await take_step(self._backend, self._sandbox_id, context.id, "write_state", folder, bounds)
            found = await read_answer(self._backend, self._sandbox_id, f"{folder}/state.json", FoundState)
            self._draft.python = self._draft.python or found.python[:100]
            hashed = _Segments(found.variables)
            part = self._part("variables")

            async for piece in self._copied(f"{folder}/variables", part, hashed):
                yield piece

            kept = self._described(kept, found, hashed, part.part)
            await self._backend.file_call(self._sandbox_id, RemoveFile(path=folder))
        else:
            self._leave_out(
                "context", context.id, "what a context of bash holds cannot be kept; it begins anew"
            )

        part = self._part("records")
        record = await self._backend.record(self._sandbox_id, context.id)
        content = await asyncio.to_thread(record_bytes, record, MAX_RECORD_BYTES - self._draft.records_bytes)
        self._draft.records_bytes += len(content)
        yield await part.write(self._counted(content))
        yield await part.end()
        self._draft.contexts.append(replace(kept, record=part.part))

    def _described(
        self, kept: SavedContext, found: FoundState, hashed: _Segments, pickle: SavedPart
    ) -> SavedContext:
        if hashed.left_bytes or sum(one.size_bytes for one in found.variables) != pickle.size_bytes:
            raise GuestStepError("it says something else of its variables than it gives")

        for unkept in found.left_out:
            self._leave_out("variable", unkept.name, unkept.reason, kept.id)

        environment = {name: text for name, text in found.environment.items() if name not in _OWN_VARIABLES}
        try:
            check_envs(environment)
            check_path("cwd", found.cwd)
        except InvalidArgumentError as error:
            raise GuestStepError(error.message) from None

        return replace(
            kept,
            cwd=found.cwd,
            environment=environment,
            execution_count=max(0, min(found.execution_count, 2**31)),
            variables=tuple(hashed.variables),
            imports=found.imports,
            pickle=pickle,
            pickled_by=found.pickled_by[:100],
        )

    async def _environment(self) -> dict[str, str]:
        """What the sandbox was made with, as a command of it sees that."""
        spec = ProcessSpec(argv=("env", "-0"), timeout_seconds=10.0)
        output = bytearray()
        try:
            started = await self._backend.start_process(self._sandbox_id, spec)

            async with aclosing(self._backend.process_output(self._sandbox_id, started.pid)) as events:
                async for event in events:
                    if not isinstance(event, ProcessExited) and event.stream == "stdout":
                        output += event.data[: _MAX_ENVIRONMENT_BYTES - len(output)]

            pairs = [text.partition("=") for text in output.decode().split("\0") if text]
            envs = {name: text for name, _, text in pairs if name not in _OWN_VARIABLES}
            check_envs(envs)
        except (FumehoodError, UnicodeDecodeError) as error:
            if isinstance(error, SandboxError):
                raise

            self._leave_out("environment", "environment", str(error))
            return {}

        return envs

    # -- files

    async def _files(self, context_id: str) -> AsyncGenerator[bytes, None]:
        await take_step(self._backend, self._sandbox_id, context_id, "list_files", self._folder)
        found = await read_answer(self._backend, self._sandbox_id, f"{self._folder}/files.json", FoundFiles)

        for unkept in found.left_out:
            self._leave_out("file", unkept.name, unkept.reason)

        lost: set[str] = set()

        for file in found.files[:MAX_FILES]:
            why = _why_not(file)

            if not why and file.type == "hardlink" and file.target in lost:
                why = f"it is another name of {file.target}"

            if why:
                self._leave_out("file", file.path, why)
                lost.add(file.path)
            elif file.type != "file":
                self._draft.files.append(_entry(file, None))
            else:
                kept = len(self._draft.files)

                async for piece in self._file(file):
                    yield piece

                if len(self._draft.files) == kept:
                    lost.add(file.path)

    async def _file(self, file: FoundFile) -> AsyncGenerator[bytes, None]:
        chunks = self._backend.read(self._sandbox_id, ReadFile(path=file.path))
        try:
            first = await anext(chunks, b"")
        except FileError as error:
            await chunks.aclose()
            self._leave_out("file", file.path, error.message)
            return

        part = self._part("files")
        async with aclosing(chunks):
            yield await part.write(self._counted(first))

            async for chunk in chunks:
                yield await part.write(self._counted(chunk))

        yield await part.end()
        self._draft.files.append(_entry(file, part.part))

    async def _copied(self, path: str, part: PartWriter, hashed: _Segments) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._backend.read(self._sandbox_id, ReadFile(path=path))) as chunks:
            async for chunk in chunks:
                hashed.update(chunk)
                yield await part.write(self._counted(chunk))

        yield await part.end()

    def _counted(self, chunk: bytes) -> bytes:
        self._draft.size_bytes += len(chunk)

        if self._draft.size_bytes > MAX_STATE_BYTES:
            raise SaveError(
                reason=f"it holds more than {MAX_STATE_BYTES:,} bytes", hint="remove files that can go"
            )

        return chunk

    def _part(self, kind: str) -> PartWriter:
        self._parts += 1
        return self._archive.begin(f"{kind}/{self._parts}")

    def _leave_out(self, kind: LeftOutKind, name: str, reason: str, context_id: str | None = None) -> None:
        self._draft.left_out.append(
            LeftOut(kind=kind, name=as_text(name, 4096), reason=as_text(reason, 500), context_id=context_id)
        )


class _Segments:
    """The digests of variables that come one behind the other."""

    def __init__(self, found: Sequence[FoundVariable]) -> None:
        self.variables: list[SavedVariable] = []
        self.left_bytes = 0
        self._waiting: Iterator[FoundVariable] = iter(found)
        self._current: FoundVariable | None = None
        self._digest = hashlib.sha256()
        self._next()

    def update(self, data: bytes) -> None:
        """Takes the next bytes."""
        view = memoryview(data)

        while view and self._current is not None:
            taken = view[: self.left_bytes]
            self._digest.update(taken)
            self.left_bytes -= len(taken)
            view = view[len(taken) :]

            if not self.left_bytes:
                self._end()

    def _end(self) -> None:
        found = self._current
        assert found is not None
        digest = self._digest.hexdigest()
        self.variables.append(
            SavedVariable(name=found.name, type=found.type[:200], size_bytes=found.size_bytes, sha256=digest)
        )
        self._next()

    def _next(self) -> None:
        self._current = next(self._waiting, None)
        self._digest = hashlib.sha256()
        self.left_bytes = 0 if self._current is None else self._current.size_bytes

        if self._current is not None and self.left_bytes <= 0:
            raise GuestStepError("it says that a variable takes no bytes")


def _why_not(file: FoundFile) -> str:
    """Why a file cannot be named, or is not where files can be."""
    try:
        check_path("path", file.path)

        if file.type in ("symlink", "hardlink"):
            check_path("target", file.target)
    except InvalidArgumentError:
        return "its name, or where it leads, is no text"

    if file.path != posixpath.normpath(file.path) or not is_writable_place(file.path):
        return "it does not lie in a writable place"

    return ""


def _entry(file: FoundFile, content: SavedPart | None) -> SavedFile:
    return SavedFile(
        path=file.path,
        type=file.type,
        mode=file.mode & 0o7777,
        modified_ns=max(-(2**62), min(file.modified_ns, 2**62)),
        content=content,
        target=file.target if content is None else "",
    )
