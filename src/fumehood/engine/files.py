"""The files of one sandbox: requests of the host, carried out by init inside the guest.

No path of the guest may be opened here; content is transferred in chunks, so that a file of any size takes constant
memory. Descriptions from the guest are checked before they become values of the API.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from sys import getsizeof
from typing import Any

from fumehood.bounds import MIB
from fumehood.engine.init_client import InitError
from fumehood.errors import FileError, InvalidArgumentError
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.requests import FileCall, ListFiles, MakeDir, ReadFile, RemoveFile, RenameFile, StatFile
from fumehood.values.sandbox import FileInfo
from fumehood_wire.messages import MAX_CHUNK_BYTES

_MAX_ENTRIES = 100_000
# Bound on the size of all names together: code in the sandbox chooses their length.
_MAX_LISTED_BYTES = 64 * MIB
_NO_START = (
    "name a folder of the sandbox; `files.make_dir()` makes one, and relative paths start at /home/user"
)

Ask = Callable[..., Awaitable[tuple[Any, bytes]]]


class LiveFiles:
    """File operations of one sandbox.

    Args:
        ask: Sends requests to init.
        on_uploaded: Called with the number of bytes written.
    """

    def __init__(self, ask: Ask, on_uploaded: Callable[[int], None]) -> None:
        self._ask = ask
        self._on_uploaded = on_uploaded

    async def read(self, request: ReadFile) -> AsyncGenerator[bytes, None]:
        """Yields a file in chunks."""
        wanted = {"beneath": HOME_PATH} if request.share else {}
        handle = await self._open(request.path, "r", "read", **wanted)
        try:
            offset = request.offset_bytes
            left = request.length_bytes

            while left is None or left > 0:
                length = MAX_CHUNK_BYTES if left is None else min(MAX_CHUNK_BYTES, left)
                _, data = await self._do(
                    "read", request.path, "read", handle=handle, offset=offset, length=length
                )

                if not data:
                    return

                yield data
                offset += len(data)
                left = None if left is None else left - len(data)
        finally:
            await self._ask("close", handle=handle, keep=False)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], metadata: Mapping[str, str] | None = None
    ) -> FileInfo:
        """Writes a file; the previous content stays until all is written."""
        wanted = {"metadata": dict(metadata)} if metadata else {}
        handle = await self._open(path, "w", "write", **wanted)
        try:
            async for chunk in chunks:
                for start in range(0, len(chunk), MAX_CHUNK_BYTES):
                    part = chunk[start : start + MAX_CHUNK_BYTES]
                    self._on_uploaded(len(part))
                    await self._do("write", path, "write", part, handle=handle)
        except BaseException:
            await self._ask("close", handle=handle, keep=False)
            raise

        value, _ = await self._do("write", path, "close", handle=handle, keep=True)
        return file_info(value)

    async def call(self, call: FileCall) -> tuple[FileInfo, ...]:
        """Describes, lists, makes, removes or renames files."""
        match call:
            case StatFile():
                value, _ = await self._do("describe", call.path, "stat", path=call.path)
            case ListFiles():
                return await self._list(call)
            case MakeDir():
                value, _ = await self._do("make the directory", call.path, "make_dir", path=call.path)
            case RemoveFile():
                await self._do("remove", call.path, "remove", path=call.path)
                return ()
            case RenameFile():
                value, _ = await self._do(
                    "rename", call.source, "rename", source=call.source, destination=call.destination
                )

        return (file_info(value),)

    async def start_folder(self, path: str) -> str:
        """Returns the absolute path of the folder in which a context is to start."""
        try:
            value, _ = await self._ask("stat", path=path)
            number = 0 if value["type"] == "dir" else errno.ENOTDIR
        except InitError as error:
            number = error.errno_value or errno.EINVAL

        if number:
            raise FileError.from_errno(
                path=path, operation="start a context in", errno_value=number, hint=_NO_START
            )

        return str(value["path"])

    async def _list(self, call: ListFiles) -> tuple[FileInfo, ...]:
        found: list[FileInfo] = []
        size_bytes = offset = 0
        wanted: dict[str, Any] = {"beneath": HOME_PATH} if call.share else {}

        while True:
            value, _ = await self._do(
                "list", call.path, "list", path=call.path, depth=call.depth, offset=offset, **wanted
            )
            found.extend(file_info(entry) for entry in value["entries"])
            size_bytes += sum(map(_size, value["entries"]))

            if value["next"] is None:
                return tuple(sorted(found, key=lambda info: info.path))

            offset = value["next"]

            if len(found) >= _MAX_ENTRIES or size_bytes > _MAX_LISTED_BYTES:
                raise InvalidArgumentError(
                    field="path",
                    value=call.path,
                    allowed=f"a directory of at most {_MAX_ENTRIES:,} entries, with names and paths of at most "
                    f"{_MAX_LISTED_BYTES:,} bytes together; list a part of it",
                )

    async def _open(self, path: str, mode: str, operation: str, **wanted: Any) -> int:
        value, _ = await self._do(operation, path, "open", path=path, mode=mode, **wanted)
        return int(value["handle"])

    async def _do(
        self, operation: str, subject: str, verb: str, payload: bytes = b"", **arguments: Any
    ) -> tuple[Any, bytes]:
        try:
            return await self._ask(verb, payload, **arguments)
        except InitError as error:
            number = error.errno_value or errno.EINVAL
            raise FileError.from_errno(path=subject, operation=operation, errno_value=number) from None


def file_info(entry: dict[str, Any]) -> FileInfo:
    """Converts a checked description to a value of the API."""
    return FileInfo(
        name=entry["name"],
        path=entry["path"],
        type=entry["type"],
        size_bytes=entry["size_bytes"],
        mode=entry["mode"],
        permissions=entry["permissions"],
        owner=entry["owner"],
        group=entry["group"],
        modified_at=_moment(entry["modified_at"]),
        symlink_target=entry.get("symlink_target"),
        resolved_target=entry.get("resolved_target"),
        metadata=entry.get("metadata", {}),
    )


def size_of_info(info: FileInfo) -> int:
    """Returns approximately how many bytes of memory a description takes."""
    texts = (info.name, info.path, info.symlink_target or "", info.resolved_target or "")
    return sum(map(getsizeof, (info, *texts, *info.metadata, *info.metadata.values())))


def _size(entry: dict[str, Any]) -> int:
    return sum(
        len(entry[name]) for name in ("name", "path", "symlink_target", "resolved_target") if name in entry
    ) + sum(len(name) + len(value) for name, value in entry.get("metadata", {}).items())


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


async def one_piece(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yields bytes that are in memory as one chunk, for `LiveFiles.write`."""
    yield content
