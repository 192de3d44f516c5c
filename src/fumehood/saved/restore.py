"""Makes a sandbox from a saved state: checks the manifest, starts it, and fills it from streams with known digests.

Runs in the host process, over the port. The sandbox has no owner until it is complete: after any error or cancellation
it is killed. A variable that cannot be restored (its package is missing) is no error, and in the report.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from fumehood.cancellation import complete
from fumehood.errors import DiskFullError, FileError, InvalidArgumentError, LoadError, SandboxClosedError
from fumehood.off_loop import off_loop
from fumehood.saved.archive import ArchiveReader
from fumehood.saved.guest_answers import (
    NEEDS_PLACES,
    GuestStepError,
    Undone,
    as_pieces,
    as_text,
    cannot_last,
    read_answer,
    take_step,
)
from fumehood.saved.manifest import read_manifest
from fumehood.saved.records import MAX_RECORD_BYTES, as_ours, read_record
from fumehood.values.execution import Record
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.languages import NAMED_CONTEXTS, known_language
from fumehood.values.plain_data import as_data
from fumehood.values.requests import (
    DEFAULT_CONTEXT_ID,
    CreateContext,
    Loaded,
    LoadRequest,
    RemoveFile,
)
from fumehood.values.saved_state import LeftOut, LeftOutKind, LoadReport, Manifest, SavedContext, SavedFile

if TYPE_CHECKING:
    from fumehood.port.backend import Backend


# Begins the record of a context, named by the ids of its sandbox and its own, with an earlier record.
Remember: TypeAlias = Callable[[str, str, Record], Awaitable[None]]


async def unpack(
    backend: Backend, request: LoadRequest, path: str | PathLike[str], remember: Remember
) -> Loaded:
    """Makes a sandbox from a saved state."""
    # One record after the other, so that several of the largest size take no more memory than one.
    with await off_loop("saved states", ArchiveReader, path) as archive:
        manifest = await off_loop("saved states", _manifest_of, archive)
        spec = replace(request.spec, envs={**manifest.envs, **request.spec.envs})

        if request.keep_template:
            spec = replace(spec, template=manifest.template)

        info = await backend.create(spec)
        unpacking = _Unpacking(backend, info.id, archive, manifest, files_only=request.files_only)
        try:
            if why := cannot_last(info):
                raise LoadError(reason=why, hint=NEEDS_PLACES)

            report = await unpacking.carry_out(frozenset(request.spec.envs), partial(remember, info.id))
        except BaseException as error:
            await complete(backend.kill(info.id))

            if isinstance(error, DiskFullError):
                raise LoadError(
                    reason=error.message, hint="allow the new sandbox more `disk_bytes`"
                ) from None

            if isinstance(error, (FileError, InvalidArgumentError, SandboxClosedError)):
                raise LoadError(reason=error.message, hint=error.hint) from None

            if isinstance(error, GuestStepError):
                raise LoadError(
                    reason=str(error), hint="its limits may be too small for what was saved"
                ) from None

            raise

    return Loaded(sandbox=info, report=report)


def _manifest_of(archive: ArchiveReader) -> Manifest:
    return read_manifest(archive.manifest_bytes(), archive.names)


class _Unpacking:
    """Fills one sandbox with the contents of a saved state."""

    def __init__(
        self,
        backend: Backend,
        sandbox_id: str,
        archive: ArchiveReader,
        manifest: Manifest,
        *,
        files_only: bool,
    ) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._archive = archive
        self._manifest = manifest
        self._files_only = files_only
        self._folder = f"/tmp/.fumehood-state-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
        self._missing: list[LeftOut] = []

    async def carry_out(
        self, envs: frozenset[str], remember: Callable[[str, Record], Awaitable[None]]
    ) -> LoadReport:
        """Fills the sandbox.

        Args:
            envs: Variables of the load request, which override those of the saved state.
            remember: Begins the record of a context with an earlier record.
        """
        default = self._manifest.contexts[0]
        contexts: dict[str, str] = {}
        await self._files()

        for context in () if self._files_only else self._manifest.contexts:
            contexts[context.id] = name = await self._context(context, is_default=context is default)

            if known_language(context.language).is_saved:
                await self._variables(context, name, envs)

            if context.record is not None:
                content = await self._archive.content(context.record, MAX_RECORD_BYTES)
                record = await asyncio.to_thread(read_record, content, context.record.name)
                await remember(name, as_ours(record, name))

        # Done last, because writing into a directory changes its time.
        await self._step("finish_files", self._entries(), kind="file")
        await self._backend.file_call(self._sandbox_id, RemoveFile(path=self._folder))
        return LoadReport(
            contexts=contexts,
            missing=tuple(self._missing),
            left_out=self._manifest.left_out,
            template=self._manifest.template,
            python=self._manifest.python,
            sandbox_id=self._manifest.sandbox_id,
        )

    async def _files(self) -> None:
        await self._step("prepare_places", self._entries())

        for file in self._manifest.files:
            if file.content is not None:
                pieces = self._archive.pieces(file.content)
                await self._backend.write(self._sandbox_id, file.path, pieces)

    def _entries(self) -> dict[str, Any]:
        return {"files": [_entry(file) for file in self._manifest.files]}

    async def _context(self, context: SavedContext, *, is_default: bool) -> str:
        if is_default:
            return DEFAULT_CONTEXT_ID

        if context.id == context.language and context.language in NAMED_CONTEXTS:
            # Made when code runs in it, or when its record is restored.
            return context.id

        # A directory that is not among the files is one of the template's, which may be another one.
        is_there = any(file.path == context.cwd and file.type == "dir" for file in self._manifest.files)
        call = CreateContext(language=context.language, cwd=context.cwd if is_there else HOME_PATH)
        return (await self._backend.context_call(self._sandbox_id, call))[0].id

    async def _variables(self, context: SavedContext, name: str, envs: frozenset[str]) -> None:
        if context.pickle is not None:
            pieces = self._archive.pieces(context.pickle)
            await self._backend.write(self._sandbox_id, f"{self._folder}/variables", pieces)

        order = {
            "cwd": context.cwd,
            "environment": {key: text for key, text in context.environment.items() if key not in envs},
            "unset": sorted(self._manifest.envs.keys() - context.environment.keys() - envs),
            "execution_count": context.execution_count,
            "imports": as_data(context.imports),
            "variables": as_data(context.variables),
        }
        await self._step("read_state", order, context_id=name, saved_as=context.id)

    async def _step(
        self,
        step: str,
        order: dict[str, Any],
        *,
        context_id: str = "default",
        saved_as: str | None = None,
        kind: LeftOutKind = "variable",
    ) -> None:
        await self._backend.write(self._sandbox_id, f"{self._folder}/order.json", as_pieces(order))
        await take_step(partial(self._backend.run, self._sandbox_id), context_id, step, self._folder)

        if step == "prepare_places":
            return

        undone = await read_answer(self._backend, self._sandbox_id, f"{self._folder}/result.json", Undone)

        for one in undone.missing:
            self._missing.append(
                LeftOut(
                    kind=kind,
                    name=as_text(one.name, 4096),
                    reason=as_text(one.reason, 500),
                    context_id=saved_as,
                )
            )


def _entry(file: SavedFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "type": file.type,
        "mode": file.mode,
        "modified_ns": file.modified_ns,
        "target": file.target,
    }
