"""The files of a sandbox: `sandbox.files`, asynchronous and synchronous.

Runs in the user's process and uses only the backend port. Every operation is carried out inside the guest; paths are
paths of the sandbox, relative ones start at /home/user. Content is transferred in pieces, so that a large file takes
time but not memory.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePath
from types import TracebackType
from typing import Literal, Protocol, TypeAlias, overload

from fumehood.api.handle import SandboxHandle
from fumehood.bounds import MIB
from fumehood.errors import (
    FileTooLargeError,
    InvalidArgumentError,
    PathExistsError,
    PathNotFoundError,
    PathNotTextError,
)
from fumehood.tracebacks import PlainErrors
from fumehood.values.checks import check_path
from fumehood.values.requests import (
    ListFiles,
    MakeDir,
    ReadFile,
    RemoveFile,
    RenameFile,
    StatFile,
    WatchFiles,
)
from fumehood.values.sandbox import FileChange, FileInfo

_CHUNK_BYTES = 1 * MIB
# Whole files are held in memory, and the guest decides how large one is.
DEFAULT_MAX_BYTES = 256 * MIB


class Readable(Protocol):
    """An open file, or any other object with such a `read` method."""

    def read(self, size: int, /) -> str | bytes:
        """Return at most `size` bytes or characters; empty at the end."""


# A path inside a sandbox: text, or what a pathlib object holds.
InsidePath: TypeAlias = str | PurePath
Content: TypeAlias = str | bytes | bytearray | memoryview | Readable
ReadFormat: TypeAlias = Literal["text", "bytes", "stream"]
FileInfos: TypeAlias = list[FileInfo]


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """One file for `write_files`."""

    path: str
    data: Content


def inside_path(path: object) -> str:
    """Return a path inside a sandbox as text.

    Any other value is returned unchanged, and refused by the check of the request.
    """
    return path.as_posix() if isinstance(path, PurePath) else path  # type: ignore[return-value]


class AsyncFilesystem(PlainErrors):
    """The files of a `Sandbox`. Every method raises a `FileError`, whose subclass names the reason."""

    def __init__(self, sandbox_handle: SandboxHandle) -> None:
        self._sandbox_handle = sandbox_handle

    @overload
    async def read(
        self, path: InsidePath, *, format: Literal["text"] = "text", max_bytes: int = ...
    ) -> str: ...
    @overload
    async def read(self, path: InsidePath, *, format: Literal["bytes"], max_bytes: int = ...) -> bytes: ...
    @overload
    async def read(
        self, path: InsidePath, *, format: Literal["stream"], max_bytes: int = ...
    ) -> AsyncGenerator[bytes, None]: ...
    async def read(
        self, path: InsidePath, *, format: ReadFormat = "text", max_bytes: int = DEFAULT_MAX_BYTES
    ) -> str | bytes | AsyncGenerator[bytes, None]:
        """Read a file.

        Args:
            path: The file.
            format: text (UTF-8), bytes, or stream: an iterator of pieces of at most 1 MiB.
            max_bytes: The maximum size; a larger file raises FileTooLargeError. It does not apply to `stream`.
        """
        chunks = self._sandbox_handle.backend.read(self._sandbox_handle.id, ReadFile(path=inside_path(path)))

        match format:
            case "stream":
                return chunks
            case "bytes":
                return await _gather(chunks, inside_path(path), max_bytes)
            case "text":
                return _decode(await _gather(chunks, inside_path(path), max_bytes), inside_path(path))
            case _:
                raise InvalidArgumentError(field="format", value=format, allowed="text, bytes or stream")

    async def write(self, path: InsidePath, data: Content) -> FileInfo:
        """Write a file, and make its parent folders; an existing file is replaced only when all is written.

        Args:
            path: The file.
            data: Text (written as UTF-8), bytes, or an open file, which is read in pieces.
        """
        inside = inside_path(path)
        check_path("path", inside)

        async with aclosing(_pieces(data)) as chunks:
            return await self._sandbox_handle.backend.write(self._sandbox_handle.id, inside, chunks)

    async def write_files(self, files: Iterable[WriteEntry]) -> FileInfos:
        """Write several files, one after the other; the first error ends it."""
        return [await self.write(entry.path, entry.data) for entry in files]

    async def list(self, path: InsidePath = ".", *, depth: int = 1) -> FileInfos:
        """List a directory, `depth` levels deep, sorted by path."""
        call = ListFiles(path=inside_path(path), depth=depth)
        return [*await self._sandbox_handle.backend.file_call(self._sandbox_handle.id, call)]

    async def exists(self, path: InsidePath) -> bool:
        """Return whether a path exists."""
        try:
            await self.get_info(path)
        except PathNotFoundError:
            return False

        return True

    async def get_info(self, path: InsidePath) -> FileInfo:
        """Describe a file or directory; links are followed."""
        return (
            await self._sandbox_handle.backend.file_call(
                self._sandbox_handle.id, StatFile(path=inside_path(path))
            )
        )[0]

    async def make_dir(self, path: InsidePath) -> bool:
        """Make a directory and its parents; False if the path existed already."""
        try:
            await self._sandbox_handle.backend.file_call(
                self._sandbox_handle.id, MakeDir(path=inside_path(path))
            )
        except PathExistsError:
            return False

        return True

    async def remove(self, path: InsidePath) -> None:
        """Remove a file, or a directory with its content."""
        await self._sandbox_handle.backend.file_call(
            self._sandbox_handle.id, RemoveFile(path=inside_path(path))
        )

    async def rename(self, source: InsidePath, destination: InsidePath) -> FileInfo:
        """Move a file or directory within the sandbox, and make the new parent folders; return its new description."""
        call = RenameFile(source=inside_path(source), destination=inside_path(destination))
        return (await self._sandbox_handle.backend.file_call(self._sandbox_handle.id, call))[0]

    async def watch(self, path: InsidePath, *, recursive: bool = False) -> AsyncWatch:
        """Watch a directory; changes are kept from the moment this returns."""
        request = WatchFiles(path=inside_path(path), recursive=recursive)
        return AsyncWatch(await self._sandbox_handle.backend.watch(self._sandbox_handle.id, request))


class AsyncWatch(PlainErrors):
    """The changes below a directory as they happen: iterate over this object, and close it or use it in a `with`."""

    def __init__(self, changes: AsyncGenerator[FileChange, None]) -> None:
        self._changes = changes

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileChange:
        return await self._changes.__anext__()

    async def close(self) -> None:
        """End the watch."""
        await self._changes.aclose()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()


async def _gather(chunks: AsyncGenerator[bytes, None], path: str, max_bytes: int) -> bytes:
    content = bytearray()

    async with aclosing(chunks):
        async for chunk in chunks:
            content += chunk

            if len(content) > max_bytes:
                raise FileTooLargeError(path=path, operation="read", errno_value=errno.EFBIG)

    return bytes(content)


def _decode(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PathNotTextError(path=path, operation="read", errno_value=errno.EILSEQ) from None


async def _pieces(data: Content) -> AsyncGenerator[bytes, None]:
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        content = memoryview(_encode(data)).cast("B")

        for start in range(0, len(content), _CHUNK_BYTES):
            yield bytes(content[start : start + _CHUNK_BYTES])

        return

    if not callable(getattr(data, "read", None)):
        raise InvalidArgumentError(field="data", value=data, allowed="text, bytes or an open file")

    # A file may be slow (a pipe, a network mount); in a thread it does not block the loop.
    while piece := await asyncio.to_thread(data.read, _CHUNK_BYTES):
        yield bytes(_encode(piece))


def _encode(data: str | bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    if not isinstance(data, str):
        return data

    try:
        return data.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(field="data", value=data[:50], allowed="UTF-8 text") from None
