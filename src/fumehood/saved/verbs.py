"""Saving to a place and loading from one: the stream of the port on one side, a file or a bucket on the other.

Runs in the host process, on the caller's side of the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fumehood.errors import ContextNotFoundError
from fumehood.saved.archive import ArchiveReader
from fumehood.saved.manifest import read_manifest
from fumehood.saved.places import StatePlace, check_readable, held, local_path, open_object, store
from fumehood.saved.records import MAX_RECORD_BYTES, read_record
from fumehood.values.execution import Record
from fumehood.values.requests import Loaded, LoadRequest
from fumehood.values.saved_state import Manifest, SaveReport

if TYPE_CHECKING:
    from fumehood.port.backend import Backend


async def save_to(backend: Backend, sandbox_id: str, place: StatePlace) -> SaveReport:
    """Saves a sandbox to a place; see `Sandbox.save`."""
    path = local_path(place)

    if path is not None:
        await store(backend.save(sandbox_id), path)
        return await _report(path, path)

    address = os.fspath(place)
    target = open_object(address)

    async with held(backend.save(sandbox_id)) as temporary:
        report = await _report(temporary, address)
        await target.put(temporary)

    return report


async def load_from(backend: Backend, request: LoadRequest, place: StatePlace) -> Loaded:
    """Makes a sandbox of what lies at a place; see `Sandbox.load`."""
    async with _at_hand(place) as path:
        return await backend.load(request, path)


async def report_on(place: StatePlace) -> SaveReport:
    """Tells what is in a saved state; see `read_saved`."""
    async with _at_hand(place) as path:
        return await _report(path, os.fspath(place))


async def record_in(place: StatePlace, context_id: str) -> Record:
    """Tells what had run in one of its contexts; see `read_saved_record`."""
    async with _at_hand(place) as path:
        with await asyncio.to_thread(ArchiveReader, path) as archive:
            manifest = await asyncio.to_thread(read_manifest, await archive.manifest(), archive.names)

            for context in manifest.contexts:
                if context.id == context_id and context.record is not None:
                    content = await archive.content(context.record, MAX_RECORD_BYTES)
                    return await asyncio.to_thread(read_record, content, context.record.name)

    raise ContextNotFoundError(context_id=context_id)


def report_of(manifest: Manifest, location: str, size_bytes: int) -> SaveReport:
    """Returns what a manifest says in short."""
    contents = [file.content for file in manifest.files if file.content is not None]
    return SaveReport(
        location=location,
        size_bytes=size_bytes,
        variables={
            context.id: (*(one.name for one in context.variables), *(one.name for one in context.imports))
            for context in manifest.contexts
        },
        left_out=manifest.left_out,
        files=len(contents),
        files_bytes=sum(content.size_bytes for content in contents),
        manifest=manifest,
    )


async def _report(path: str, location: str) -> SaveReport:
    with await asyncio.to_thread(ArchiveReader, path) as archive:
        manifest = await asyncio.to_thread(read_manifest, await archive.manifest(), archive.names)

    return report_of(manifest, location, os.path.getsize(path))


@asynccontextmanager
async def _at_hand(place: StatePlace) -> AsyncIterator[str]:
    path = local_path(place)

    if path is not None:
        check_readable(path)
        yield path
        return

    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(held(open_object(os.fspath(place)).pieces()))
