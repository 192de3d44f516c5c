"""What of a folder is stored, where a guest's timing matters: a scripted folder, with the real records and blobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fumehood.dialects.e2b import volume_store
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_folders import MAX_LISTED, Mount, VolumeFolders
from fumehood.dialects.e2b.volume_store import VolumeStore
from fumehood.storage.blobs import open_blobs
from fumehood.storage.database import default_url, open_database
from fumehood.storage.files import StoredFiles
from fumehood.values.requests import ListFiles, ReadFile, StatFile
from fumehood.values.sandbox import FileInfo

ROOT = "/mnt/data/v"
LONG_AGO = 1_000_000.0
ROOT_INFO = FileInfo(
    name="v",
    path=ROOT,
    type="dir",
    size_bytes=0,
    mode=0o755,
    permissions="drwxr-xr-x",
    owner="user",
    group="user",
    modified_at=None,
)


@dataclass
class Folder:
    """A folder as init describes it; `stuck` is a file whose content never comes."""

    files: dict[str, bytes] = field(default_factory=dict)
    changed_at: float = LONG_AGO
    stuck: str = ""
    reads: list[str] = field(default_factory=list)

    async def file_call(self, _sandbox_id: str, call: StatFile | ListFiles) -> tuple[FileInfo, ...]:
        if isinstance(call, StatFile):
            return (ROOT_INFO,)

        at = datetime.fromtimestamp(self.changed_at, UTC)
        return tuple(
            replace(
                ROOT_INFO, name=name, path=f"{ROOT}/{name}", type="file", size_bytes=len(data), modified_at=at
            )
            for name, data in self.files.items()
        )

    async def read(self, _sandbox_id: str, request: ReadFile) -> AsyncGenerator[bytes, None]:
        name = request.path.removeprefix(f"{ROOT}/")
        self.reads.append(name)

        if name == self.stuck:
            await asyncio.Event().wait()

        yield self.files[name]


@dataclass
class Scene:
    """A volume that a sandbox with a scripted folder holds."""

    store: VolumeStore
    mount: Mount
    folder: Folder
    blobs: Path

    async def round(self) -> set[str]:
        """One round; returns what is stored after it."""
        await VolumeFolders(self.folder, self.store).store_changes(self.mount)  # type: ignore[arg-type]
        return set(await self.store.entries(self.mount.volume))

    def blobs_there(self) -> int:
        return sum(path.is_file() for path in self.blobs.rglob("*"))


@asynccontextmanager
async def opened(place: Path) -> AsyncGenerator[Scene, None]:
    database = await open_database(default_url(str(place)))
    services: Any = SimpleNamespace(
        stored_files=StoredFiles(database), blobs=open_blobs(str(place / "blobs"))
    )
    try:
        store = VolumeStore(services)
        volume = await store.create("k", "v")
        held = await store.set_details(volume, {"sandbox": "s", "path": ROOT})
        assert held is not None
        yield Scene(store, Mount(held), Folder(), place / "blobs")
    finally:
        await database.close()


@pytest.fixture
def played(tmp_path: Path) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    """Plays a scene."""

    def play(act: Callable[[Scene], Awaitable[None]]) -> None:
        async def run() -> None:
            async with opened(tmp_path) as scene:
                await act(scene)

        asyncio.run(run())

    return play


def test_a_file_that_is_missing_once_is_kept(played):
    """A listing during a rename can miss it; when it is missing again, it and its bytes are removed."""

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"1", "b": b"2"}
        assert await scene.round() == {"a", "b"}
        del scene.folder.files["a"]
        assert await scene.round() == {"a", "b"}
        scene.folder.files["a"] = b"1"
        assert await scene.round() == {"a", "b"}
        del scene.folder.files["a"]
        await scene.round()
        assert await scene.round() == {"b"}
        assert scene.blobs_there() == 1

    played(act)


def test_only_changes_are_read_and_near_times_count_as_such(played):
    """A file that may have changed within the tick of its time is read again, and the same bytes are stored once."""

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"1"}
        await scene.round()
        await scene.round()
        assert scene.folder.reads == ["a"]

        for changed_at in (time.time(), time.time() + 1e6):
            scene.folder.changed_at = changed_at
            await scene.round()
            scene.folder.files["a"] = b"2"
            await scene.round()
            assert scene.folder.reads == ["a"] * 3
            stored = (await scene.store.entries(scene.mount.volume))["a"]
            assert b"".join([piece async for piece in await scene.store.read(stored)]) == b"2"
            scene.folder.reads = ["a"]
            scene.folder.files["a"] = b"1"

        assert scene.blobs_there() == 1

    played(act)


def test_a_round_that_is_cut_off_keeps_what_it_has_stored(played):
    """And the next one goes on from there."""

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"1", "b": b"2"}
        scene.folder.stuck = "b"

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await scene.round()

        assert set(await scene.store.entries(scene.mount.volume)) == {"a"}
        scene.folder.stuck = ""
        assert await scene.round() == {"a", "b"}
        assert scene.folder.reads == ["a", "b", "b"]

    played(act)


def test_a_flood_of_entries_stores_and_removes_nothing(played):
    """Each of them would hold up the server for a little."""

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"1"}
        await scene.round()
        scene.folder.files = {f"f{number}": b"" for number in range(MAX_LISTED + 1)}

        for _ in range(2):
            with pytest.raises(VolumeError, match="nothing is stored while there are more than 10000"):
                await scene.round()

        assert set(await scene.store.entries(scene.mount.volume)) == {"a"}

    played(act)


def test_what_a_key_may_store_is_bounded(played, monkeypatch):
    """What does not fit is left out with its reason, also among records that are written together."""
    monkeypatch.setattr(volume_store, "MAX_BYTES_OF_KEY", 5)

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"123", "b": b"1234", "c": b"12"}
        assert await scene.round() == {"a", "c"}
        assert list(scene.mount.left_out) == ["b"]
        scene.folder.files = {"a": b"12", "b": b"1", "c": b"12"}
        scene.folder.changed_at += 1
        # What the new content of `a` replaces is there until its record is written.
        await scene.round()
        assert await scene.round() == {"a", "b", "c"}
        assert scene.mount.left_out == {}
        await scene.store.delete(scene.mount.volume)
        assert scene.blobs_there() == 0
        assert await scene.store.list("k") == []

    played(act)
