"""Saves a sandbox as one file: idle contexts pickle their variables, then all parts are streamed while it goes on.

Only the lists that a guest makes are parsed, within bounds. Variables, records and files are of one moment; if no
snapshot of the files can be made, the current files are read, and the report has an entry for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from fumehood.bounds import GIB
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError, LoadError, SaveError
from fumehood.saved.archive import ArchiveWriter, PartWriter
from fumehood.saved.guest_answers import (
    NEEDS_PLACES,
    FoundFile,
    FoundFiles,
    FoundState,
    GuestStepError,
    Segments,
    as_text,
    cannot_last,
    entry_of,
    found_of,
    read_answer,
    take_step,
    why_not,
)
from fumehood.saved.manifest import (
    FORMAT,
    MAX_CONTEXTS,
    MAX_FILES,
    MAX_STATE_BYTES,
    VERSION,
    manifest_bytes,
    read_manifest,
)
from fumehood.saved.records import MAX_RECORD_BYTES, record_bytes
from fumehood.values.checks import check_envs, check_path
from fumehood.values.execution import Execution, Record
from fumehood.values.requests import ExecuteRequest, ReadFile, RemoveFile
from fumehood.values.sandbox import ContextInfo
from fumehood.values.saved_state import LeftOut, LeftOutKind, Manifest, SavedContext, SavedFile, SavedPart

if TYPE_CHECKING:
    from fumehood.port.backend import Backend

_EACH_BYTES = 1 * GIB
_ALL_BYTES = 4 * GIB
_EACH_SECONDS = 10.0
_ALL_SECONDS = 60.0
# The variables that every sandbox starts with.
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
    """The parts of the saved state that are collected so far."""

    contexts: list[SavedContext] = field(default_factory=list)
    files: list[SavedFile] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    python: str = ""
    size_bytes: int = 0
    records_bytes: int = 0


class SavableSandbox(Protocol):
    """The engine's part of saving: a sandbox at rest, and its files at that moment.

    Attributes:
        envs: The environment that the sandbox was made with.
    """

    envs: Mapping[str, str]

    def at_rest(self) -> AbstractAsyncContextManager[Sequence[ContextInfo]]:
        """Yields the contexts, the default one first; those of Python are idle during the block."""

    async def run(self, context_id: str, request: ExecuteRequest) -> Execution:
        """Runs code in a context that is at rest."""

    def record(self, context_id: str) -> Record:
        """Returns the record of a context so far."""

    async def keep_files(self) -> str:
        """Takes a snapshot of all files; returns the reason if that is impossible."""

    def files(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yields the entries of the writable places at the snapshot, each directory before its content."""

    def read(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yields the content of a file at the snapshot."""

    async def let_go(self, files: int, size_bytes: int) -> None:
        """Releases the snapshot; the arguments are the numbers of saved files and bytes."""


@dataclass(frozen=True, slots=True)
class _AtRest:
    """A context as it was at the moment of saving."""

    context: ContextInfo
    folder: str
    record: Record


async def pack(backend: Backend, sandbox_id: str, moment: SavableSandbox) -> AsyncGenerator[bytes, None]:
    """Yields the file of a saved state."""
    packing = _Packing(backend, sandbox_id, moment)
    try:
        async with aclosing(packing.pieces()) as pieces:
            async for piece in pieces:
                if piece:
                    yield piece
    except (GuestStepError, FileError) as error:
        # A file that cannot be read from its first byte is left out; a failure in the middle ends the saving.
        raise SaveError(reason=str(error)) from None
    finally:
        await packing.clean_up()


class _Packing:
    """Writes one saved state."""

    def __init__(self, backend: Backend, sandbox_id: str, moment: SavableSandbox) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._moment = moment
        self._folder = f"/tmp/.fumehood-state-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
        self._folders = [self._folder]
        self._archive = ArchiveWriter()
        self._draft = _Draft()
        self._parts = 0
        # Files that are not kept: other names of theirs cannot be either.
        self._lost: set[str] = set()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        info = await self._backend.info(self._sandbox_id)

        if why := cannot_last(info):
            raise SaveError(reason=why, hint=NEEDS_PLACES)

        at_rest, why_apart = await self._at_rest()

        for one in at_rest:
            async with aclosing(self._context(one)) as pieces:
                async for piece in pieces:
                    yield piece

        files = self._kept_files() if not why_apart else self._found_files(why_apart)
        async with aclosing(files) as pieces:
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
            envs=dict(self._moment.envs),
            contexts=tuple(self._draft.contexts),
            files=tuple(self._draft.files),
            left_out=tuple(self._draft.left_out),
        )
        content = await asyncio.to_thread(manifest_bytes, manifest)
        try:
            # Answers of a guest can have the right form and still contradict each other.
            await asyncio.to_thread(read_manifest, content, self._archive.names)
        except LoadError as error:
            raise SaveError(reason=error.reason) from None

        yield await self._archive.end(content)

    async def clean_up(self) -> None:
        """Releases the snapshot of the files, and removes the folders into which contexts exported variables."""
        await self._moment.let_go(len(self._draft.files), self._draft.size_bytes)

        for folder in self._folders:
            # The sandbox has ended or is paused, or there is no folder: a remaining folder ends with the sandbox.
            with contextlib.suppress(FumehoodError):
                await self._backend.file_call(self._sandbox_id, RemoveFile(path=folder))

    # -- contexts

    async def _at_rest(self) -> tuple[list[_AtRest], str]:
        """Exports all contexts' variables and snapshots the files; the text is why there is no snapshot, or empty."""
        found: list[_AtRest] = []

        async with self._moment.at_rest() as contexts:
            for number, context in enumerate(contexts[:MAX_CONTEXTS]):
                folder = f"{self._folder}-{number}"
                self._folders.append(folder)

                if context.language == "python":
                    bounds = (_EACH_BYTES, _ALL_BYTES, _EACH_SECONDS, _ALL_SECONDS)
                    await take_step(self._run_in(context), context.id, "write_state", folder, bounds)

                found.append(_AtRest(context, folder, self._moment.record(context.id)))

            for context in contexts[MAX_CONTEXTS:]:
                self._leave_out("context", context.id, f"only {MAX_CONTEXTS} contexts are kept")

            why_apart = await self._moment.keep_files()

            if why_apart:
                await take_step(self._run_in(contexts[0]), contexts[0].id, "list_files", self._folder)

        return found, why_apart

    def _run_in(self, context: ContextInfo) -> Callable[[ExecuteRequest], Awaitable[Execution]]:
        return partial(self._moment.run, context.id)

    async def _context(self, at_rest: _AtRest) -> AsyncGenerator[bytes, None]:
        context, folder = at_rest.context, at_rest.folder
        kept = SavedContext(id=context.id, language=context.language, cwd=context.cwd)

        if context.language == "python":
            found = await read_answer(self._backend, self._sandbox_id, f"{folder}/state.json", FoundState)
            self._draft.python = self._draft.python or found.python[:100]
            hashed = Segments(found.variables)
            part = self._part("variables")

            async for piece in self._copied(f"{folder}/variables", part, hashed):
                yield piece

            kept = self._described(kept, found, hashed, part.part)
            await self._backend.file_call(self._sandbox_id, RemoveFile(path=folder))
        else:
            self._leave_out(
                "context",
                context.id,
                f"what a context of {context.language} holds cannot be kept; it begins anew",
            )

        part = self._part("records")
        left_bytes = MAX_RECORD_BYTES - self._draft.records_bytes
        content = await asyncio.to_thread(record_bytes, at_rest.record, left_bytes)
        self._draft.records_bytes += len(content)
        yield await part.write(self._counted(content))
        yield await part.end()
        self._draft.contexts.append(replace(kept, record=part.part))

    def _described(
        self, kept: SavedContext, found: FoundState, hashed: Segments, pickle: SavedPart
    ) -> SavedContext:
        if hashed.left_bytes or sum(one.size_bytes for one in found.variables) != pickle.size_bytes:
            raise GuestStepError("it describes other variables than it returns")

        for unkept in found.left_out:
            self._leave_out("variable", unkept.name, unkept.reason, kept.id)

        not_kept = _OWN_VARIABLES - self._moment.envs.keys()
        environment = {name: text for name, text in found.environment.items() if name not in not_kept}
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

    # -- files

    async def _kept_files(self) -> AsyncGenerator[bytes, None]:
        """The files as they were at the moment of saving."""
        names: dict[int, str] = {}
        count = 0

        async with aclosing(self._moment.files()) as entries:
            async for entry in entries:
                count += 1

                if count > MAX_FILES:
                    self._leave_out("file", str(entry["path"]), f"there are more than {MAX_FILES:,} files")
                    return

                file = found_of(entry, names)

                if file is None:
                    self._leave_out(
                        "file", str(entry["path"]), "it is neither a file nor a directory nor a link"
                    )
                    continue

                async with aclosing(self._one(file, self._moment.read)) as pieces:
                    async for piece in pieces:
                        yield piece

    async def _found_files(self, why_apart: str) -> AsyncGenerator[bytes, None]:
        """The files as a context has listed them, with their content at the time of reading."""
        self._leave_out(
            "moment",
            "files",
            f"each is as it was when it was read, since they could not be kept: {why_apart}",
        )
        found = await read_answer(self._backend, self._sandbox_id, f"{self._folder}/files.json", FoundFiles)

        for unkept in found.left_out:
            self._leave_out("file", unkept.name, unkept.reason)

        for file in found.files[:MAX_FILES]:
            async with aclosing(self._one(file, self._read)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _one(
        self, file: FoundFile, read: Callable[[str], AsyncGenerator[bytes, None]]
    ) -> AsyncGenerator[bytes, None]:
        if self._is_ours(file.path):
            return

        why = why_not(file)

        if not why and file.type == "hardlink" and file.target in self._lost:
            why = f"it is another name of {file.target}"

        if why:
            self._leave_out("file", file.path, why)
            self._lost.add(file.path)
            return

        if file.type != "file":
            self._draft.files.append(entry_of(file, None))
            return

        async with aclosing(self._content(file, read(file.path))) as pieces:
            async for piece in pieces:
                yield piece

    async def _content(
        self, file: FoundFile, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(chunks):
            try:
                first = await anext(chunks, b"")
            except FileError as error:
                self._leave_out("file", file.path, error.message)
                self._lost.add(file.path)
                return

            part = self._part("files")
            yield await part.write(self._counted(first))

            async for chunk in chunks:
                yield await part.write(self._counted(chunk))

        yield await part.end()
        self._draft.files.append(entry_of(file, part.part))

    def _read(self, path: str) -> AsyncGenerator[bytes, None]:
        return self._backend.read(self._sandbox_id, ReadFile(path=path))

    def _is_ours(self, path: str) -> bool:
        # By its name, which is random: one place can have several paths.
        return any(name.startswith(posixpath.basename(self._folder)) for name in path.split("/"))

    async def _copied(self, path: str, part: PartWriter, hashed: Segments) -> AsyncGenerator[bytes, None]:
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
