"""The snapshots of one sandbox's files, by requests to its init.

It sends the requests, and converts refusals of init to errors; it must not decide what a snapshot is used for.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from fumehood.engine.init_client import InitError
from fumehood.errors import CheckpointError, FileError
from fumehood_wire.messages import MAX_CHUNK_BYTES


class LiveSnapshots:
    """The snapshots of one sandbox, by the numbers that init gives them.

    Args:
        ask: Sends requests to init.
    """

    def __init__(self, ask: Callable[..., Awaitable[tuple[Any, bytes]]]) -> None:
        self._ask_init = ask

    async def take(self, held: Sequence[int]) -> dict[str, Any]:
        """Takes a snapshot of the files; the processes with these pids wait for the host and need not be stopped."""
        return await self._ask("take_snapshot", held=list(held))

    async def put_back(self, snapshot: int, held: Sequence[int]) -> None:
        """Restores the files."""
        await self._ask("restore_snapshot", snapshot=snapshot, held=list(held))

    async def compare(self, snapshot: int, later: int | None = None) -> dict[str, Any]:
        """Returns the changes of the files since the snapshot: until now, or until a later one."""
        more = {} if later is None else {"later": later}
        return await self._ask("compare_snapshot", snapshot=snapshot, **more)

    async def list_files(self, snapshot: int) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the entries of the writable folders, each directory before its content."""
        offset: int | None = 0

        while offset is not None:
            page = await self._ask("list_snapshot", snapshot=snapshot, offset=offset)

            for entry in page["entries"]:
                yield entry

            offset = page["next"] if page["entries"] else None

    async def read(self, snapshot: int, path: str) -> AsyncGenerator[bytes, None]:
        """Yields the content of a file.

        Raises:
            FileError: The path was not a regular file, or its content could not be kept.
        """
        offset = 0
        place = {"snapshot": snapshot, "path": path, "length": MAX_CHUNK_BYTES}

        while True:
            try:
                _, data = await self._ask_init("read_snapshot", offset=offset, **place)
            except InitError as error:
                number = error.errno_value or errno.EINVAL
                raise FileError.from_errno(path=path, operation="read", errno_value=number) from None

            if not data:
                return

            yield data
            offset += len(data)

    async def drop(self, snapshot: int) -> None:
        """Makes init release a snapshot, with the leases and copies that no other snapshot uses."""
        await self._ask("drop_snapshot", snapshot=snapshot)

    async def _ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        try:
            value, _ = await self._ask_init(verb, **arguments)
        except InitError as error:
            raise CheckpointError.from_errno(error.errno_value, error.message) from None

        return dict(value or {})
