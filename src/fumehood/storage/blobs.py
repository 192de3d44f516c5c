"""The blob store: bytes that outlive a sandbox, in a local folder by default, or in S3, Azure or Google storage.

Runs in the server's process, on its loop; obstore's own threads do the work. Names are made here and matched against
one pattern; a user's name is never part of one. A blob appears completely or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from fumehood.errors import (
    BlobNotFoundError,
    FumehoodError,
    InvalidArgumentError,
    RequestTooLargeError,
    StorageError,
    StorageStartError,
)
from fumehood.log import events
from fumehood.saved.places import ALLOWED_STORES, BUCKET_SCHEMES

_KIND = re.compile(r"[a-z]{1,16}", re.ASCII)
# The second form is that of artifacts, whose last part `artifact_files` has made harmless.
_NAME = re.compile(
    r"[a-z]{1,16}/(?:[0-9a-f]{2}/[0-9a-f]{32}|[0-9a-f]{32}/[0-9a-f]{32}/[A-Za-z0-9][A-Za-z0-9._-]{0,99})",
    re.ASCII,
)
_GROUP = re.compile(r"[0-9a-f]{32}", re.ASCII)
# The minimum size of a part in S3; so much of each transfer is in memory, twice.
_PART_BYTES = 5 * 1024 * 1024
_PARTS_AT_ONCE = 2
_READ_BYTES = 256 * 1024
# Time of one request, to the last byte of its body: slow is better than aborted. An endpoint with http:// is configured
# on purpose; the stores' own all begin with https://.
_CLIENT = {"timeout": "300s", "connect_timeout": "10s", "allow_http": True}
# A caller waits meanwhile; obstore's own three minutes are too long for that.
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_DELETES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """The description of a blob.

    Attributes:
        name: Its name.
        size_bytes: Its size.
        modified_at: When it was stored (UTC).
        etag: The store's own tag of its content, or None.
    """

    name: str
    size_bytes: int
    modified_at: datetime
    etag: str | None


@dataclass(frozen=True, slots=True)
class BlobReading:
    """A blob, or a range of it, that is being read.

    Attributes:
        info: The whole blob.
        start: First byte of the range.
        end: The byte after its last.
        chunks: The bytes of the range, to be read once.
    """

    info: BlobInfo
    start: int
    end: int
    chunks: AsyncIterator[bytes]


def open_blobs(location: str, *, options: Mapping[str, Any] | None = None) -> Blobs:
    """Open a blob store.

    Nothing is requested of a remote store yet: `Blobs.check` does that.

    Args:
        location: A folder, which is made, or the address of a bucket or container.
        options: Settings of a remote store as obstore names them. Without them its own environment variables count
            (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AZURE_STORAGE_ACCOUNT_NAME`, `GOOGLE_SERVICE_ACCOUNT`, ...).

    Raises:
        InvalidArgumentError: The address is of an unknown kind.
        StorageStartError: The folder cannot be made, or the address or a setting is refused.
    """
    # The stubs have one overload for each kind of store; only the address decides which.
    open_store: Callable[..., Any] = from_url

    try:
        if location.startswith(BUCKET_SCHEMES):
            store = open_store(location, config=options, client_options=_CLIENT, retry_config=_RETRIES)
            return Blobs(store, location)

        if "://" in location or not location:
            raise InvalidArgumentError(
                field="blobs_url", value=location.partition("://")[0], allowed=ALLOWED_STORES
            )

        folder = os.path.abspath(location)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return Blobs(LocalStore(prefix=folder), folder)
    except (OSError, ValueError, BaseError) as error:
        if isinstance(error, InvalidArgumentError):
            raise

        raise StorageStartError(location=location, reason=_said(error)) from error


class Blobs:
    """A blob store.

    Attributes:
        location: Its folder or address.
    """

    def __init__(self, store: Any, location: str) -> None:
        self.location = location
        self._store = store

    async def check(self) -> None:
        """Raise StorageStartError unless the store answers; called once at the start."""
        try:
            async for _ in obstore.list(self._store, prefix="check", chunk_size=1):
                break
        except (OSError, BaseError) as error:
            raise StorageStartError(location=self.location, reason=_said(error)) from error

    async def put(
        self,
        data: bytes | AsyncIterable[bytes],
        *,
        kind: str = "files",
        max_bytes: int | None = None,
        name: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> BlobInfo:
        """Store bytes under a new name.

        Args:
            data: All bytes, or a stream; an error of the stream is raised, and nothing is stored.
            kind: First part of the name: letters.
            max_bytes: A longer stream is refused.
            name: The name to use instead of a generated one.
            attributes: Headers of a remote store's responses; a folder keeps none.

        Raises:
            RequestTooLargeError: The content has more than `max_bytes`; nothing was stored.
        """
        name = _new_name(kind) if name is None else _checked(name)
        source = _Source(data, max_bytes)

        try:
            with self._failing("storing a file"):
                result = await self._put(name, source, None if attributes is None else dict(attributes))
        except Exception:
            # An error of the caller's stream is not the store's, whatever its type.
            if source.failure is not None:
                raise source.failure from None

            raise

        return BlobInfo(name, source.size_bytes, datetime.now(UTC), result["e_tag"])

    async def head(self, name: str) -> BlobInfo:
        """Return the description of a blob; raise BlobNotFoundError if there is none."""
        with self._failing("looking up a file", _checked(name)):
            return _info(await obstore.head_async(self._store, name))

    async def get(self, name: str, *, start: int = 0, end: int | None = None) -> BlobReading:
        """Begin to read a blob.

        Args:
            name: Its name.
            start: First byte.
            end: The byte after the last; None, or one beyond the blob, is its end.

        Raises:
            InvalidArgumentError: No byte is in the range, and the blob is not empty.
        """
        if start < 0 or (end is not None and end < start):
            raise InvalidArgumentError(field="range", value=(start, end), allowed="0 <= start <= end")

        if start == 0 and end is None:
            return await self._read(name, None)

        # Stores refuse a range outside in different ways; so the size is read first.
        size_bytes = (await self.head(name)).size_bytes
        end = size_bytes if end is None else min(end, size_bytes)

        if start >= end:
            raise InvalidArgumentError(
                field="range", value=(start, end), allowed=f"bytes of a file that has {size_bytes}"
            )

        return await self._read(name, (start, end))

    async def read(self, name: str, *, max_bytes: int) -> bytes:
        """Return a whole blob; raise RequestTooLargeError if it has more than `max_bytes`."""
        reading = await self.get(name)

        if reading.info.size_bytes > max_bytes:
            raise RequestTooLargeError(what="file", maximum=max_bytes)

        return b"".join([chunk async for chunk in reading.chunks])

    async def delete(self, name: str) -> None:
        """Remove a blob; does nothing if it does not exist."""
        with contextlib.suppress(BlobNotFoundError):
            with self._failing("removing a file", _checked(name)):
                await obstore.delete_async(self._store, name)

    async def delete_many(self, names: Iterable[str]) -> None:
        """Remove blobs, a few at a time."""
        gate = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def delete_one(name: str) -> None:
            async with gate:
                await self.delete(name)

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(delete_one(name))

    async def signed_url(self, name: str, *, expires_seconds: float) -> str:
        """Return an address with which a blob can be read for so long, without credentials; remote stores only.

        Raises:
            StorageError: The credentials of the store cannot sign.
        """
        with self._failing("signing an address", _checked(name)):
            return await obstore.sign_async(
                self._store, "GET", name, expires_in=timedelta(seconds=expires_seconds)
            )

    async def list(self, kind: str, *, group: str | None = None) -> AsyncGenerator[BlobInfo, None]:
        """Yield the blobs of a kind, or of one group of artifacts, in no order."""
        if not _KIND.fullmatch(kind):
            raise InvalidArgumentError(field="kind", value=kind, allowed="1 to 16 letters a to z")

        if group is not None and not _GROUP.fullmatch(group):
            raise InvalidArgumentError(field="group", value=group, allowed="32 hexadecimal digits")

        prefix = kind if group is None else f"{kind}/{group}"

        with self._failing("listing files"):
            async for batch in obstore.list(self._store, prefix=prefix):
                for meta in batch:
                    # Files of others in the same place are ignored.
                    if _NAME.fullmatch(meta["path"]):
                        yield _info(meta)

    async def _put(self, name: str, source: _Source, attributes: dict[str, str] | None) -> Any:
        first = await source.first_part()

        # One part is one request; a multipart upload is at least three, and cannot be empty.
        if source.is_exhausted:
            return await obstore.put_async(
                self._store, name, first, attributes=attributes, use_multipart=False
            )

        return await obstore.put_async(
            self._store,
            name,
            source.rest(first),
            attributes=attributes,
            chunk_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    async def _read(self, name: str, span: tuple[int, int] | None) -> BlobReading:
        with self._failing("reading a file", _checked(name)):
            result = await obstore.get_async(self._store, name, options={"range": span} if span else None)
            start, end = result.range
            return BlobReading(_info(result.meta), start, end, self._chunks(result, name))

    async def _chunks(self, result: Any, name: str) -> AsyncGenerator[bytes, None]:
        with self._failing("reading a file", name):
            async for chunk in result.stream(min_chunk_size=_READ_BYTES):
                yield bytes(chunk)

    @contextlib.contextmanager
    def _failing(self, operation: str, name: str = "") -> Iterator[None]:
        """Translate errors of the store; their text goes to the log, not to the caller.

        Args:
            operation: The operation.
            name: The blob that must be there for it, if one must.
        """
        try:
            yield
        except FumehoodError:
            # Some are OSErrors as well; an error of a caller's stream is not the store's.
            raise
        except (OSError, BaseError) as error:
            # Without a blob in the request, the bucket is missing.
            if name and isinstance(error, FileNotFoundError):
                raise BlobNotFoundError(name=name) from error

            events.STORAGE_FAILED.log(location=self.location, operation=operation, reason=_said(error))
            raise StorageError(operation=operation, reason=_said(error)) from error


class _Source:
    """The bytes of a caller, counted; too many are an error of the stream.

    Attributes:
        size_bytes: How many bytes have passed.
        is_exhausted: Whether all bytes have been read.
        failure: The error of the stream, or None.
    """

    def __init__(self, data: bytes | AsyncIterable[bytes], max_bytes: int | None) -> None:
        self.size_bytes = 0
        self.is_exhausted = False
        self.failure: Exception | None = None
        self._stream = aiter(_stream_of(data))
        self._max_bytes = max_bytes

    async def first_part(self) -> bytes:
        """Return the first bytes: all, or the minimum of a part."""
        gathered = bytearray()

        while len(gathered) < _PART_BYTES and not self.is_exhausted:
            gathered += await self._next()

        return bytes(gathered)

    async def rest(self, first: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the first part and all later bytes."""
        yield first

        while not self.is_exhausted:
            chunk = await self._next()

            if chunk:
                yield chunk

    async def _next(self) -> bytes:
        try:
            chunk = await anext(self._stream, None)

            if chunk is None:
                self.is_exhausted = True
                return b""

            self.size_bytes += len(chunk)

            if self._max_bytes is not None and self.size_bytes > self._max_bytes:
                raise RequestTooLargeError(what="file", maximum=self._max_bytes)
        except Exception as error:
            self.failure = error
            raise

        return chunk


async def _stream_of(data: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(data, bytes):
        yield data
        return

    async for chunk in data:
        yield chunk


def _new_name(kind: str) -> str:
    if not _KIND.fullmatch(kind):
        raise InvalidArgumentError(field="kind", value=kind, allowed="1 to 16 letters a to z")

    stem = secrets.token_hex(16)
    # A folder with a million entries is slow to list on some file systems.
    return f"{kind}/{stem[:2]}/{stem}"


def _checked(name: str) -> str:
    """Check that this module made a name; no blob has any other."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BlobNotFoundError(name=str(name)[:200])

    return name


def _info(meta: Any) -> BlobInfo:
    return BlobInfo(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"])


def _said(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
