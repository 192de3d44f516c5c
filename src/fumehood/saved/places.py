"""The places of saved states, and saving to or loading from one: a file of this machine, or an object in a bucket.

Runs on the caller's side of the port. A file appears completely or not at all, readable only by its owner; a bucket
uses `obstore`, loaded when one is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import IO, TYPE_CHECKING, TypeAlias

from fumehood.errors import ContextNotFoundError, FumehoodError, InvalidArgumentError, LoadError, SaveError
from fumehood.saved.archive import ArchiveReader
from fumehood.saved.manifest import read_manifest
from fumehood.saved.records import MAX_RECORD_BYTES, read_record
from fumehood.values.execution import Record
from fumehood.values.requests import Loaded, LoadRequest
from fumehood.values.saved_state import Manifest, SaveReport

if TYPE_CHECKING:
    from fumehood.port.backend import Backend
    from fumehood.saved.object_store import SingleObject

# The prefixes of addresses of buckets.
BUCKET_SCHEMES = ("s3://", "az://", "gs://")
# The allowed addresses of a store of many files, for errors.
ALLOWED_STORES = "a folder, s3://BUCKET[/PREFIX], az://CONTAINER[/PREFIX] or gs://BUCKET[/PREFIX]"
StatePlace: TypeAlias = str | os.PathLike[str]


async def store(pieces: AsyncGenerator[bytes, None], path: str) -> int:
    """Writes a stream to a new file of this machine, which replaces `path` when it is complete."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".fumehood-", dir=os.path.dirname(path) or ".")
    except OSError as error:
        await pieces.aclose()
        raise SaveError(
            reason=f"{path}: {error.strerror}", hint="name a file in an existing folder"
        ) from None

    size_bytes = 0
    try:
        with open(descriptor, "wb") as file:
            async with aclosing(pieces):
                async for piece in pieces:
                    size_bytes += len(piece)
                    await asyncio.to_thread(file.write, piece)

            await asyncio.to_thread(_to_disk, file)

        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

        # Errors of the tree can be of the system's kind too.
        is_systems = not isinstance(error, FumehoodError)

        if is_systems and isinstance(error, OSError) and error.filename in (None, temporary, path):
            raise SaveError(reason=f"{path}: {error.strerror or error}") from None

        raise

    return size_bytes


@asynccontextmanager
async def held(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[str]:
    """Yields the path of a temporary file with the content of a stream."""
    with tempfile.TemporaryDirectory(prefix="fumehood-") as folder:
        path = os.path.join(folder, "state")
        await store(pieces, path)
        yield path


def local_path(place: StatePlace) -> str | None:
    """Returns the path that a place names, or None when it is in a bucket.

    Raises:
        InvalidArgumentError: The place is neither a path nor an address of a bucket.
    """
    text = os.fspath(place) if isinstance(place, (str, os.PathLike)) else place

    if isinstance(text, str) and text.startswith(BUCKET_SCHEMES):
        return None

    if not isinstance(text, str) or "://" in text or not text or "\0" in text:
        raise InvalidArgumentError(
            field="place",
            value=text,
            allowed="a path, or s3://BUCKET/NAME, az://CONTAINER/NAME or gs://BUCKET/NAME",
        )

    return text


def open_object(place: str) -> SingleObject:
    """Returns the object in a bucket that an address names."""
    try:
        from fumehood.saved.object_store import SingleObject
    except ModuleNotFoundError as missing:
        raise InvalidArgumentError(
            field="place", value=place, allowed=f"{missing.name}, which is not installed", extra="blobs"
        ) from None

    return SingleObject(place)


def check_readable(path: str) -> None:
    """Raises LoadError unless the file exists."""
    if not os.path.isfile(path):
        raise LoadError(
            reason=f"{path}: there is no such file",
            hint="save a sandbox there first: `sandbox.save(PLACE)`, or `fumehood save SANDBOX PLACE`",
        )


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


async def save_to(backend: Backend, sandbox_id: str, place: StatePlace) -> SaveReport:
    """Saves a sandbox to a file or an object store, and returns the report on its saved state."""
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
    """Makes a sandbox from the saved state in a file or an object store."""
    async with _at_hand(place) as path:
        return await backend.load(request, path)


async def report_on(place: StatePlace) -> SaveReport:
    """Returns the report on the saved state in a file or an object store."""
    async with _at_hand(place) as path:
        return await _report(path, os.fspath(place))


async def record_in(place: StatePlace, context_id: str) -> Record:
    """Returns the record of a context in the saved state in a file or an object store."""
    async with _at_hand(place) as path:
        with await asyncio.to_thread(ArchiveReader, path) as archive:
            manifest = await asyncio.to_thread(read_manifest, await archive.manifest(), archive.names)

            for context in manifest.contexts:
                if context.id == context_id and context.record is not None:
                    content = await archive.content(context.record, MAX_RECORD_BYTES)
                    return await asyncio.to_thread(read_record, content, context.record.name)

    raise ContextNotFoundError(context_id=context_id)


def report_of(manifest: Manifest, location: str, size_bytes: int) -> SaveReport:
    """Returns the summary of a manifest."""
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
