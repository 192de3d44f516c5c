"""Publishing: files that code writes to /mnt/data, and its pictures, for users who cannot access the sandbox.

They are stored in a folder of this machine, which needs only the standard library, or in a bucket, for which `Blobs`
is loaded when the first file goes there. The guest chooses every name, size and number: names become harmless keys,
sizes and numbers are bounded for each sandbox, and no name of a guest is used as a path of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fumehood.api.files import Readable
from fumehood.bounds import GIB, MIB
from fumehood.errors import FileError, FileTooLargeError, InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.portal import call
from fumehood.saved.places import ALLOWED_STORES, BUCKET_SCHEMES
from fumehood.storage.published_files import (
    PublishedFiles,
    find_files,
    group_of,
    headers_of,
    is_new,
    key_of,
    left_out,
    mime_of,
    name_of,
    pictures_of,
    shown_name,
)
from fumehood.values.execution import Execution
from fumehood.values.limits import check_seconds
from fumehood.values.published_file import PublishedFile
from fumehood.values.sandbox import FileInfo

if TYPE_CHECKING:
    from fumehood.api.async_sandbox import AsyncSandbox
    from fumehood.api.sandbox import Sandbox
    from fumehood.storage.blobs import Blobs

_KIND = "artifacts"


class FileStore(Protocol):
    """A store of published files."""

    async def put(self, key: str, content: AsyncIterable[bytes], headers: Mapping[str, str]) -> int:
        """Store a file completely or not at all; return its size. Errors of the stream are raised."""

    async def address(self, key: str) -> tuple[str, datetime | None]:
        """Return the address of a stored file, and its expiry."""

    async def remove(self, group: str) -> None:
        """Remove all files of a group."""


class Folder:
    """A folder of this machine; files and folders in it are for its user alone.

    Args:
        path: The folder; made at the first file.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    async def put(self, key: str, content: AsyncIterable[bytes], headers: Mapping[str, str]) -> int:
        """Store a file; a folder keeps no headers."""
        target = os.path.join(self.path, *key.split("/"))
        size_bytes = 0

        with self._failing("storing a file"):
            descriptor, temporary = await asyncio.to_thread(self._begin, os.path.dirname(target))

        try:
            with open(descriptor, "wb") as file:
                async for piece in content:
                    size_bytes += len(piece)

                    with self._failing("storing a file"):
                        await asyncio.to_thread(file.write, piece)

            with self._failing("storing a file"):
                os.replace(temporary, target)
        except BaseException:
            shutil.rmtree(os.path.dirname(target), ignore_errors=True)
            raise

        return size_bytes

    async def address(self, key: str) -> tuple[str, datetime | None]:
        """Return the address of the file on this machine."""
        return Path(self.path, *key.split("/")).as_uri(), None

    async def remove(self, group: str) -> None:
        """Remove the folder of a group."""
        with self._failing("removing files"), contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, os.path.join(self.path, group))

    def _begin(self, parent: str) -> tuple[int, str]:
        # `mode` applies only to the last folder.
        for folder in (self.path, os.path.dirname(parent), parent):
            os.makedirs(folder, mode=0o700, exist_ok=True)

        return tempfile.mkstemp(prefix=".new-", dir=parent)

    @contextlib.contextmanager
    def _failing(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            events.STORAGE_FAILED.log(location=str(self.path), operation=operation, reason=error.strerror)
            raise StorageError(operation=operation, reason=f"{self.path}: {error.strerror}") from error


class Bucket:
    """A bucket or container of S3, Azure or Google.

    Args:
        location: Its address.
        expires_seconds: How long an address for reading works.
        options: Settings as obstore names them; its own environment variables count without them.
    """

    def __init__(self, location: str, expires_seconds: float, options: Mapping[str, Any] | None) -> None:
        self._location = location
        self._expires_seconds = expires_seconds
        self._options = options

    async def put(self, key: str, content: AsyncIterable[bytes], headers: Mapping[str, str]) -> int:
        """Store a file with the headers of its response."""
        stored = await self._blobs.put(content, name=f"{_KIND}/{key}", attributes=headers)
        return stored.size_bytes

    async def address(self, key: str) -> tuple[str, datetime | None]:
        """Return a signed address."""
        ends = datetime.now(UTC) + timedelta(seconds=self._expires_seconds)
        url = await self._blobs.signed_url(f"{_KIND}/{key}", expires_seconds=self._expires_seconds)
        return url, ends

    async def remove(self, group: str) -> None:
        """Remove all files of a group."""
        names = [info.name async for info in self._blobs.list(_KIND, group=group)]
        await self._blobs.delete_many(names)

    @cached_property
    def _blobs(self) -> Blobs:
        try:
            from fumehood.storage.blobs import open_blobs
        except ModuleNotFoundError as missing:
            raise InvalidArgumentError(
                field="location",
                value=self._location,
                allowed=f"{missing.name}, which is not installed",
                extra="blobs",
            ) from None

        return open_blobs(self._location, options=self._options)


def open_place(location: str, *, expires_seconds: float, options: Mapping[str, Any] | None) -> FileStore:
    """Return the store at a location; nothing is requested of it yet.

    Raises:
        InvalidArgumentError: The location is neither a folder nor an address of a known kind, or a folder has options.
    """
    if location.startswith(BUCKET_SCHEMES):
        return Bucket(location, expires_seconds, options)

    if "://" in location or not location:
        raise InvalidArgumentError(
            field="location",
            value=location.partition("://")[0],
            allowed=ALLOWED_STORES,
        )

    if options:
        raise InvalidArgumentError(field="options", value=sorted(options), allowed="none for a folder")

    return Folder(location)


ArtifactContent: TypeAlias = bytes | Readable | AsyncIterable[bytes]

# The maximum that S3 and Google sign.
_MAX_EXPIRES_SECONDS = 7 * 86_400
_CHUNK_BYTES = 1 * MIB
# Groups whose counts are kept; the oldest is dropped first.
_MAX_GROUPS = 10_000


@dataclass(slots=True)
class _Group:
    """The published files of a group.

    Attributes:
        count: The number of files.
        size_bytes: Their total size.
        pictures: Pictures among them, which have no name of their own.
        versions: By path, the time and size of the file when it was last published.
    """

    count: int = 0
    size_bytes: int = 0
    pictures: int = 0
    versions: dict[str, tuple[datetime | None, int]] = field(default_factory=dict)


class AsyncArtifactStore:
    """Publishes files of a sandbox: a link for each file, for people and models without access to the sandbox.

    Use one store for many sandboxes. The amount published for each is bounded, because the guest determines how much
    there is.

    Args:
        location: A folder, or `s3://BUCKET[/PREFIX]`, `az://CONTAINER[/PREFIX]`, `gs://BUCKET[/PREFIX]`, which need
            `fumehood[blobs]`. None: FUMEHOOD_ARTIFACTS, or `artifacts` in this user's data folder.
        expires_seconds: How long the signed address of a file in a bucket works, a week at most. Addresses of a
            folder (`file://`) work on this machine and do not end.
        max_file_bytes: A larger file is left out.
        max_files: How many files of one sandbox.
        max_total_bytes: How many bytes of one sandbox.
        options: Settings of a bucket as obstore names them; without them its environment variables count.

    Raises:
        InvalidArgumentError: An argument is refused.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        expires_seconds: float = 3600,
        max_file_bytes: int = 256 * MIB,
        max_files: int = 1000,
        max_total_bytes: int = 2 * GIB,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_seconds("expires_seconds", expires_seconds, high=_MAX_EXPIRES_SECONDS)

        for name, value in {
            "max_file_bytes": max_file_bytes,
            "max_files": max_files,
            "max_total_bytes": max_total_bytes,
        }.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgumentError(field=name, value=value, allowed="a whole number, 1 or more")

        if location is not None and not isinstance(location, (str, os.PathLike)):
            raise InvalidArgumentError(
                field="location", value=location, allowed="a folder, or the address of a bucket"
            )

        self._location = None if location is None else os.fspath(location)
        self._expires_seconds = expires_seconds
        self._options = options
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._max_total_bytes = max_total_bytes
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._place: FileStore | None = None

        # A wrong address is reported now; the default is looked up when it is needed.
        if self._location is not None:
            self._place = self._open(self._location)

    async def put(
        self, name: str, content: ArtifactContent, *, mime: str | None = None, group: str = ""
    ) -> PublishedFile:
        """Publish bytes.

        Args:
            name: The name of the file; only its suffix and its harmless characters reach the store.
            content: Bytes, an open file, or a stream.
            mime: Its type, if it is in the list; otherwise the suffix of its name decides.
            group: The group with which it is counted and removed, such as the id of a sandbox.

        Raises:
            FileTooLargeError: There are more bytes than allowed; nothing was stored.
            InvalidArgumentError: The group has the maximum number of files already.
            StorageError: The store failed.
        """
        known = self._group(group)
        room_bytes = self._room_bytes(known)
        known.count += 1
        kind = mime_of(name, mime)
        key = key_of(group, name)

        try:
            async with aclosing(_bounded(_pieces(content), name, room_bytes)) as pieces:
                size_bytes = await self._kept.put(key, pieces, headers_of(name, kind))
        except BaseException:
            known.count -= 1
            raise

        known.size_bytes += size_bytes
        url, expires_at = await self._kept.address(key)
        return PublishedFile(
            name=shown_name(name), mime=kind, size_bytes=size_bytes, url=url, expires_at=expires_at
        )

    async def publish(
        self, sandbox: AsyncSandbox, paths: Iterable[str] | None = None, *, execution: Execution | None = None
    ) -> PublishedFiles:
        """Publish files of a sandbox, and the pictures of an execution.

        A file that is too large, one too many or missing is in the list with `skipped` set.

        Args:
            sandbox: The sandbox.
            paths: The files; None: those of /mnt/data that are new or have changed since they were last published
                here, without hidden ones and links.
            execution: Its pictures come first.

        Raises:
            PathNotFoundError: A file of `paths` does not exist.
            StorageError: The store failed.
        """
        group = sandbox.id
        known = self._group(group)
        found = await find_files(sandbox, paths)
        wanted = found if paths is not None else [entry for entry in found if is_new(entry, known.versions)]
        done = [await self._picture(*picture, group) for picture in pictures_of(execution)]

        for number, entry in enumerate(wanted):
            if known.count >= self._max_files:
                done.append(
                    left_out(entry, f"{self._max_files} files are the most", len(wanted) - number - 1)
                )
                break

            done.append(await self._file(sandbox, entry, group))

        return done

    async def remove(self, group: str) -> None:
        """Remove the published files of a sandbox, named by its id, or of another group."""
        await self._kept.remove(group_of(group))
        self._groups.pop(group, None)

    async def _file(self, sandbox: AsyncSandbox, entry: FileInfo, group: str) -> PublishedFile:
        known = self._group(group)
        room_bytes = min(self._max_file_bytes, self._max_total_bytes - known.size_bytes)

        if entry.size_bytes > room_bytes:
            return left_out(entry, f"its {entry.size_bytes} bytes are too many")

        try:
            async with aclosing(await sandbox.files.read(entry.path, format="stream")) as content:
                file = await self.put(name_of(entry), content, group=group)
        except (FileError, InvalidArgumentError) as error:
            # The latter for a name that is no text, which cannot be requested.
            return left_out(entry, error.message)

        known.versions[entry.path] = (entry.modified_at, entry.size_bytes)
        return replace(file, path=entry.path)

    async def _picture(self, content: bytes, mime: str, group: str) -> PublishedFile:
        known = self._group(group)
        known.pictures += 1
        name = f"figure-{known.pictures}.{'jpg' if mime == 'image/jpeg' else mime.partition('/')[2]}"

        try:
            return await self.put(name, content, mime=mime, group=group)
        except (FileTooLargeError, InvalidArgumentError) as error:
            return PublishedFile(name=name, mime=mime, size_bytes=len(content), skipped=error.message)

    @property
    def _kept(self) -> FileStore:
        if self._place is None:
            # By name and late: settings are read where the parts are assembled, at the first use.
            from fumehood.assemble import artifacts_location

            self._place = self._open(artifacts_location())

        return self._place

    def _open(self, location: str) -> FileStore:
        return open_place(location, expires_seconds=self._expires_seconds, options=self._options)

    def _group(self, group: str) -> _Group:
        known = self._groups.setdefault(group, _Group())
        self._groups.move_to_end(group)

        while len(self._groups) > _MAX_GROUPS:
            self._groups.popitem(last=False)

        return known

    def _room_bytes(self, known: _Group) -> int:
        if known.count >= self._max_files:
            raise InvalidArgumentError(
                field="files", value=known.count + 1, allowed=f"at most {self._max_files} of one sandbox"
            )

        return min(self._max_file_bytes, self._max_total_bytes - known.size_bytes)


class ArtifactStore:
    """Publishes files of a sandbox: a link for each file, for people and models without access to the sandbox.

    Use one store for many sandboxes. The amount published for each is bounded, because the guest determines how much
    there is.

    Attributes:
        async_impl: The same store for asyncio.

    Args:
        location: A folder, or `s3://BUCKET[/PREFIX]`, `az://CONTAINER[/PREFIX]`, `gs://BUCKET[/PREFIX]`, which need
            `fumehood[blobs]`. None: FUMEHOOD_ARTIFACTS, or `artifacts` in this user's data folder.
        expires_seconds: How long the signed address of a file in a bucket works, a week at most. Addresses of a
            folder (`file://`) work on this machine and do not end.
        max_file_bytes: A larger file is left out.
        max_files: How many files of one sandbox.
        max_total_bytes: How many bytes of one sandbox.
        options: Settings of a bucket as obstore names them; without them its environment variables count.

    Raises:
        InvalidArgumentError: An argument is refused.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        *,
        expires_seconds: float = 3600,
        max_file_bytes: int = 256 * MIB,
        max_files: int = 1000,
        max_total_bytes: int = 2 * GIB,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.async_impl = AsyncArtifactStore(
            location,
            expires_seconds=expires_seconds,
            max_file_bytes=max_file_bytes,
            max_files=max_files,
            max_total_bytes=max_total_bytes,
            options=options,
        )

    def put(
        self, name: str, content: ArtifactContent, *, mime: str | None = None, group: str = ""
    ) -> PublishedFile:
        """Publish bytes.

        Args:
            name: The name of the file; only its suffix and its harmless characters reach the store.
            content: Bytes, an open file, or a stream.
            mime: Its type, if it is in the list; otherwise the suffix of its name decides.
            group: The group with which it is counted and removed, such as the id of a sandbox.

        Raises:
            FileTooLargeError: There are more bytes than allowed; nothing was stored.
            InvalidArgumentError: The group has the maximum number of files already.
            StorageError: The store failed.
        """
        return call(self.async_impl.put, name, content, mime=mime, group=group)

    def publish(
        self, sandbox: Sandbox, paths: Iterable[str] | None = None, *, execution: Execution | None = None
    ) -> PublishedFiles:
        """Publish files of a sandbox, and the pictures of an execution.

        A file that is too large, one too many or missing is in the list with `skipped` set.

        Args:
            sandbox: The sandbox.
            paths: The files; None: those of /mnt/data that are new or have changed since they were last published
                here, without hidden ones and links.
            execution: Its pictures come first.

        Raises:
            PathNotFoundError: A file of `paths` does not exist.
            StorageError: The store failed.
        """
        return call(self.async_impl.publish, sandbox._async, paths, execution=execution)

    def remove(self, group: str) -> None:
        """Remove the published files of a sandbox, named by its id, or of another group."""
        call(self.async_impl.remove, group)


async def _pieces(content: ArtifactContent) -> AsyncGenerator[bytes, None]:
    if isinstance(content, bytes):
        yield content
    elif isinstance(content, AsyncIterable):
        async for piece in content:
            yield piece
    elif callable(getattr(content, "read", None)):
        while piece := await _read_piece(content):
            yield piece
    else:
        raise InvalidArgumentError(
            field="content", value=type(content).__name__, allowed="bytes, an open file or a stream"
        )


async def _read_piece(file: Readable) -> bytes:
    # Reading a file may be slow; in a thread it does not block the loop.
    piece: str | bytes = await asyncio.to_thread(lambda: file.read(_CHUNK_BYTES))
    return piece.encode() if isinstance(piece, str) else piece


async def _bounded(pieces: AsyncIterator[bytes], name: str, max_bytes: int) -> AsyncGenerator[bytes, None]:
    size_bytes = 0

    async for piece in pieces:
        size_bytes += len(piece)

        if size_bytes > max_bytes:
            raise FileTooLargeError(path=name, operation="publish", errno_value=errno.EFBIG)

        yield piece
