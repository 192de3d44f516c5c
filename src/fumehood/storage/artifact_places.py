"""The stores of published files: a folder of this machine, or a bucket, behind one small interface.

The folder needs only the standard library; the bucket uses `Blobs`, loaded when the first file goes there. Keys are
made by `artifact_files`, so that none of them can name a path of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fumehood.errors import InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.saved.places import ALLOWED_STORES, BUCKET_SCHEMES

if TYPE_CHECKING:
    from fumehood.storage.blobs import Blobs

_KIND = "artifacts"


class Place(Protocol):
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


def open_place(location: str, *, expires_seconds: float, options: Mapping[str, Any] | None) -> Place:
    """Return the store at a location; nothing is requested of it yet.

    Raises:
        InvalidArgumentError: It is neither a folder nor an address of a known kind, or a folder has options.
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
