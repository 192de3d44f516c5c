"""The holds of volumes, as an earlier process of the server left them; a scripted sandbox, the real records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_mounts import VolumeMounts, Wanted
from fumehood.dialects.e2b.volume_store import VolumeStore
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import default_url, open_database
from fumehood.storage.files import StoredFiles


class Sandbox:
    """A sandbox that runs, and takes the first file of a volume only."""

    def __init__(self) -> None:
        self.written = asyncio.Event()

    async def info(self, _sandbox_id: str) -> SimpleNamespace:
        return SimpleNamespace(state="running")

    async def file_call(self, _sandbox_id: str, _call: object) -> tuple[()]:
        return ()

    async def write(self, *_args: object) -> None:
        self.written.set()
        await asyncio.Event().wait()


def test_a_copy_that_a_killed_server_left_is_no_mount(tmp_path: Path):
    """It is freed at the next start, and what was not copied is removed by no round."""

    async def run() -> None:
        sandbox = Sandbox()

        async with _server(tmp_path, sandbox) as (store, mounts):
            volume = await store.create("k", "v")
            entries = await store.entries(volume)

            async with store.storing(volume, entries) as files:
                await files.put_folder("a")
                await files.put("b", _pieces(b"1"))

            mounting = asyncio.create_task(mounts.mount("s", [Wanted(volume, "/mnt/data/v")]))
            await sandbox.written.wait()
            (held,) = await store.list("k")

            # While the copy goes on, the volume is held; also for the look at the start.
            mounts.begin()
            await mounts.close()

            with pytest.raises(VolumeError, match="held by sandbox 's'"):
                await mounts.check_free(held)

            # A process that was killed leaves the record as it is.
            async with _server(tmp_path, sandbox) as (_, later):
                free = await later.check_free(held)
                assert free.details == {}
                held_again = await store.set_details(free, held.details)
                assert held_again is not None
                later.begin()

                while (await store.list("k"))[0].details:
                    await asyncio.sleep(0.01)

                assert later.of(volume) is None
                await later.close()

            mounting.cancel()
            await asyncio.gather(mounting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 60))


@asynccontextmanager
async def _server(place: Path, sandbox: Sandbox) -> AsyncGenerator[tuple[VolumeStore, VolumeMounts], None]:
    database = await open_database(default_url(str(place)))
    services: Any = SimpleNamespace(
        stored_files=StoredFiles(database),
        blobs=open_blobs(str(place / "blobs")),
        backend=sandbox,
        state=place,
        spending=SimpleNamespace(cpu=SimpleNamespace(note_work=lambda _sandbox_id: None)),
    )
    try:
        store = VolumeStore(services)
        yield store, VolumeMounts(services, store)
    finally:
        await database.close()


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
