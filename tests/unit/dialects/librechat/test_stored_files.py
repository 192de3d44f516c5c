"""What a key may keep of LibreChat's files is bounded in number and in bytes, also for files that come together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fumehood.dialects.librechat import stored_files
from fumehood.dialects.librechat.stored_files import NewFile, Shelf
from fumehood.errors import QuotaError
from fumehood.server.services import Services
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import open_database
from fumehood.storage.files import StoredFile, StoredFiles

PIECE = b"x" * 1000
A_FILE = NewFile(session_id="s", name="n", details={})


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Services]:
    database = await open_database(f"sqlite:///{folder}/fumehood.db")

    try:
        services = SimpleNamespace(
            stored_files=StoredFiles(database),
            blobs=open_blobs(str(folder / "blobs")),
            settings=SimpleNamespace(max_upload_bytes=1 << 20),
        )
        yield cast("Services", services)
    finally:
        await database.close()


async def pieces(count: int, gate: asyncio.Barrier | None = None) -> AsyncGenerator[bytes, None]:
    for _ in range(count):
        yield PIECE

    if gate is not None:
        await gate.wait()


def blobs_in(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "blobs").rglob("*"))


def test_the_sum_of_bytes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond it leaves nothing; another key has room of its own, and what was removed leaves room."""
    monkeypatch.setattr(stored_files, "MAX_BYTES", 10_000)

    async def scene() -> None:
        async with opened(tmp_path) as services:
            shelf = Shelf(services, "k")
            kept = await shelf.put(A_FILE, pieces(6))

            with pytest.raises(QuotaError, match="bytes of files"):
                await shelf.put(A_FILE, pieces(5))

            assert blobs_in(tmp_path) == 1
            await Shelf(services, "other").put(A_FILE, pieces(10))
            await shelf.put(A_FILE, pieces(4))
            await shelf.remove(kept)
            await shelf.put(A_FILE, pieces(6))

    asyncio.run(scene())


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come together are counted as well: each is whole before any is recorded."""
    monkeypatch.setattr(stored_files, "MAX_FILES", 2)

    async def scene() -> None:
        async with opened(tmp_path) as services:
            gate = asyncio.Barrier(4)
            work = [Shelf(services, "k").put(A_FILE, pieces(1, gate)) for _ in range(4)]
            answers = await asyncio.gather(*work, return_exceptions=True)
            assert sum(isinstance(answer, StoredFile) for answer in answers) == 2
            assert sum(isinstance(answer, QuotaError) for answer in answers) == 2
            assert blobs_in(tmp_path) == 2

    asyncio.run(scene())


def test_bytes_on_their_way_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that never ends takes room; when it is given up, it takes none."""
    monkeypatch.setattr(stored_files, "MAX_BYTES", 10_000)

    async def scene() -> None:
        async with opened(tmp_path) as services:
            begun = asyncio.Event()

            async def slow() -> AsyncGenerator[bytes, None]:
                yield PIECE * 6
                begun.set()
                await asyncio.Event().wait()

            shelf = Shelf(services, "k")
            upload = asyncio.create_task(shelf.put(A_FILE, slow()))
            await begun.wait()

            with pytest.raises(QuotaError):
                await shelf.put(A_FILE, pieces(5))

            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
            await shelf.put(A_FILE, pieces(10))

    asyncio.run(scene())
    gc.collect()
    assert not [one for one in stored_files._COMING.values() if one.bytes_of]
