"""The holds of volumes, as an earlier process of the server left them; a scripted sandbox, the real records."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.dialects.e2b import volume_mounts
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_mounts import VolumeMounts, Wanted
from fumehood.dialects.e2b.volume_store import VolumeStore
from fumehood.dialects.e2b.volumes import Volumes
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import default_url, open_database
from fumehood.storage.files import StoredFiles
from fumehood.storage.keys import Keys


class Sandbox:
    """A sandbox that runs, and takes the first file of a volume only."""

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.listed = 0

    async def info(self, _sandbox_id: str) -> SimpleNamespace:
        return SimpleNamespace(state="running")

    async def file_call(self, _sandbox_id: str, _call: object) -> tuple[()]:
        self.listed += 1
        return ()

    async def write(self, *_args: object) -> None:
        self.written.set()
        await asyncio.Event().wait()


class Clock:
    """A clock that goes on as it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


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


def test_the_log_says_how_much_is_left_out_and_no_path_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A guest chooses its paths; the owner of the volume sees one of them in its description."""
    path = "/mnt/data/v/chosen-by-the-guest"

    async def leave_out(mount: volume_mounts.Mount, **_options: bool) -> None:
        mount.left_out[path] = "its name is too long"

    async def run() -> None:
        async with _server(tmp_path, Sandbox()) as (store, mounts):
            volume = await store.create("k", "v")
            await mounts.mount("s", [Wanted(volume, "/mnt/data/v")])
            monkeypatch.setattr(mounts._folders, "store_changes", leave_out)
            mount = mounts.of(volume)
            assert mount is not None
            await mounts._round(mount, 60)
            assert path in mount.problem
            await mounts.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "1 entries are left out" in caplog.text
    assert "chosen" not in caplog.text


def test_a_long_round_makes_the_next_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten times what it took, so that a guest that is slow to list takes no more than a tenth of a task."""
    clock, waits, ended = Clock(), [], asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.to_thread(int)

        if len(waits) == 3:
            ended.set()
            await asyncio.Event().wait()

    class Slow(Sandbox):
        """Its folder takes no time in the first round, and four seconds in the second one."""

        async def info(self, sandbox_id: str) -> SimpleNamespace:
            clock.seconds += 2.0 * (len(waits) - 1)
            return await super().info(sandbox_id)

    async def run() -> None:
        async with _server(tmp_path, Slow()) as (store, mounts):
            volume = await store.create("k", "v")
            monkeypatch.setattr(volume_mounts.time, "monotonic", clock)
            monkeypatch.setattr(volume_mounts.asyncio, "sleep", wait)
            await mounts.mount("s", [Wanted(volume, "/mnt/data/v")])
            await ended.wait()
            monkeypatch.undo()
            await mounts.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert waits == [5.0, 5.0, 40.0]


def test_only_who_may_end_a_sandbox_has_its_volumes_stored(tmp_path: Path):
    """A request of another key, which is refused afterwards, causes no reads in the sandbox."""

    async def run() -> None:
        sandbox = Sandbox()

        async with _server(tmp_path, sandbox) as (store, mounts):
            await mounts.mount("s", [Wanted(await store.create("k", "v"), "/mnt/data/v")])
            sandbox.listed = 0
            await mounts.settle("s", "another key")
            assert sandbox.listed == 0
            await mounts.settle("s", "k")
            assert sandbox.listed > 0
            await mounts.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_can_no_longer_be_reached_is_deleted(tmp_path: Path):
    """The volumes of a revoked key, and bytes without a record, but none that may be on their way to one."""

    async def run() -> None:
        async with _services(tmp_path, Sandbox()) as services:
            revoked, other = [(await services.keys.create(name)).record.id for name in ("revoked", "other")]
            volumes = Volumes(services, Any)
            store = volumes.store

            for owner in (revoked, other):
                volume = await store.create(owner, "v")

                async with store.storing(volume, {}) as files:
                    await files.put("a", _pieces(owner.encode()))

            strays = [await services.blobs.put(b"stray", kind="volumes") for _ in range(2)]
            two_days_ago = time.time() - 2 * 24 * 3600
            os.utime(tmp_path / "blobs" / strays[0].name, (two_days_ago, two_days_ago))
            (kept,) = (await store.entries(volume)).values()
            os.utime(tmp_path / "blobs" / kept.blob, (two_days_ago, two_days_ago))
            await services.keys.revoke(revoked)
            await volumes.remove_unreachable()
            assert [one.owner for one in await store.list_all()] == [other]
            there = {blob.name async for blob in services.blobs.list("volumes")}
            assert there == {kept.blob, strays[1].name}

    asyncio.run(asyncio.wait_for(run(), 60))


@asynccontextmanager
async def _services(place: Path, sandbox: Sandbox) -> AsyncGenerator[Any, None]:
    database = await open_database(default_url(str(place)))
    try:
        async with AsyncExitStack() as at_end:
            yield SimpleNamespace(
                stored_files=StoredFiles(database),
                blobs=open_blobs(str(place / "blobs")),
                keys=Keys(database),
                backend=sandbox,
                state=place,
                at_end=at_end,
                spending=SimpleNamespace(cpu=SimpleNamespace(note_work=lambda _sandbox_id: None)),
            )
    finally:
        await database.close()


@asynccontextmanager
async def _server(place: Path, sandbox: Sandbox) -> AsyncGenerator[tuple[VolumeStore, VolumeMounts], None]:
    async with _services(place, sandbox) as services:
        store = VolumeStore(services)
        yield store, VolumeMounts(services, store)


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
