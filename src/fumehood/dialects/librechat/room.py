"""The storage quota of an owner: stored files, and bytes of uploads under way.

Concurrent uploads count for each other; whether a file may stay is decided when it is complete, for one file of an
owner at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

from fumehood.bounds import GIB
from fumehood.server.allowance import used_up
from fumehood.storage.files import KeptFiles, StoredFiles

KIND = "librechat"
MAX_FILES = 20_000
MAX_BYTES = 20 * GIB


class _Coming:
    """The uploads under way to the files of one server, by owner."""

    def __init__(self) -> None:
        self.bytes_of: Counter[str] = Counter()
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


# A shelf is made for each request, and a process may have several servers.
_COMING: WeakKeyDictionary[StoredFiles, _Coming] = WeakKeyDictionary()


class Room:
    """The room for one more file of an owner; made by `room_for_one`.

    Args:
        stored_files: The stored files of all owners.
        owner: The owner of the file.
    """

    def __init__(self, stored_files: StoredFiles, owner: str) -> None:
        self._stored_files = stored_files
        self._owner = owner
        self._coming = _COMING.setdefault(stored_files, _Coming())
        self._own_bytes = 0

    async def counted(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Passes the file's bytes on.

        Raises:
            QuotaError: There is no room for more of them.
        """
        kept = await self._kept(0)

        async for piece in pieces:
            self._own_bytes += len(piece)
            self._coming.bytes_of[self._owner] += len(piece)
            _check_bytes(kept.size_bytes + self._coming.bytes_of[self._owner])
            yield piece

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None, None]:
        """Holds the room while the file, which is complete now, is recorded.

        Raises:
            QuotaError: Other uploads have taken it meanwhile.
        """
        async with self._coming.turns.setdefault(self._owner, asyncio.Lock()):
            await self._kept(self._own_bytes)
            yield

    def give_back(self) -> None:
        """Stops counting its bytes: they are recorded, or removed."""
        coming = self._coming.bytes_of
        coming[self._owner] -= self._own_bytes

        if not coming[self._owner]:
            del coming[self._owner]

    async def _kept(self, more_bytes: int) -> KeptFiles:
        kept = await self._stored_files.kept_by(self._owner, kind=KIND)

        if kept.count >= MAX_FILES:
            raise used_up("files", kept.count, MAX_FILES)

        _check_bytes(kept.size_bytes + more_bytes)
        return kept


@asynccontextmanager
async def room_for_one(stored_files: StoredFiles, owner: str) -> AsyncGenerator[Room, None]:
    """Counts the bytes of one upload of an owner until it is recorded or removed, which happens in the block."""
    room = Room(stored_files, owner)

    try:
        yield room
    finally:
        room.give_back()


def _check_bytes(size_bytes: int) -> None:
    if size_bytes > MAX_BYTES:
        raise used_up("bytes of files", size_bytes, MAX_BYTES)
