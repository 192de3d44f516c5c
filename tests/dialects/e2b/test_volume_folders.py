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
from unittest.mock import AsyncMock

import pytest

from fumehood.dialects.e2b import volume_store
from fumehood.dialects.e2b.answers import VolumeError
from fumehood.dialects.e2b.volume_folders import MAX_LISTED, Mount, VolumeFolders
from fumehood.dialects.e2b.volume_store import VolumeStore
from fumehood.errors import RequestTooLargeError
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
    """A folder as init describes it; `stuck` is a file whose content never comes, `folders` have modes."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    changed_at: float = LONG_AGO
    stuck: str = ""
    mode: int = 0o755
    reads: list[str] = field(default_factory=list)

    async def file_call(self, _sandbox_id: str, call: StatFile | ListFiles) -> tuple[FileInfo, ...]:
        if isinstance(call, StatFile):
            return (replace(ROOT_INFO, mode=self.mode),)

        at = datetime.fromtimestamp(self.changed_at, UTC)
        folders = [
            replace(ROOT_INFO, name=name, path=f"{ROOT}/{name}", mode=mode)
            for name, mode in self.folders.items()
        ]
        return (*folders, *self._files(at))

    def _files(self, at: datetime) -> tuple[FileInfo, ...]:
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

    async def round(self, *, reads_all: bool = False) -> set[str]:
        """One round; returns what is stored after it."""
        folders = VolumeFolders(self.folder, self.store)  # type: ignore[arg-type]
        await folders.store_changes(self.mount, reads_all=reads_all)
        return set(await self.store.entries(self.mount.volume))

    async def stored(self, path: str) -> bytes:
        entry = (await self.store.entries(self.mount.volume))[path]
        return b"".join([piece async for piece in await self.store.read(entry)])

    async def cut_off(self) -> set[str]:
        """A round that comes to the stuck file, and no further; returns what is stored after it."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await self.round()

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


def test_a_file_and_a_folder_replace_each_other_in_one_round(played):
    """So that no volume has a file and something below it, which no sandbox could be given."""

    async def act(scene: Scene) -> None:
        scene.folder.folders = {"a": 0o755}
        scene.folder.files = {"a/b": b"1", "c": b"2"}
        assert await scene.round() == {"a", "a/b", "c"}
        scene.folder.folders = {"c": 0o755}
        scene.folder.files = {"a": b"3", "c/d": b"4"}
        assert await scene.round() == {"a", "c", "c/d"}
        assert (await scene.stored("a"), await scene.stored("c/d")) == (b"3", b"4")
        assert scene.blobs_there() == 2

    played(act)


def test_a_rename_never_leaves_neither_name(played, monkeypatch):
    """Where there is no room for both, the record of the new name ends that of the old one."""
    monkeypatch.setattr(volume_store, "MAX_VOLUME_BYTES", 10)

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"1" * 4, "b": b"2" * 4}
        await scene.round()
        scene.folder.files = {"x": b"2" * 4, "y": b"1" * 4}
        assert await scene.round() == {"a", "b"}
        scene.folder.stuck = "x"
        assert await scene.cut_off() == {"a", "b"}
        scene.folder.stuck = "y"
        assert await scene.cut_off() == {"a", "x"}
        scene.folder.stuck = ""
        assert await scene.round() == {"x", "y"}
        assert (await scene.stored("x"), scene.mount.left_out, scene.blobs_there()) == (b"2" * 4, {}, 2)

    played(act)


def test_an_older_record_of_a_path_never_comes_back(played):
    """Neither one that was replaced when the server was killed, nor one of two that were written at once."""

    async def act(scene: Scene) -> None:
        monkeypatch = pytest.MonkeyPatch()
        volume = scene.mount.volume
        scene.folder.files = {"a": b"old"}
        await scene.round()
        twice = [await scene.store.entries(volume) for _ in range(2)]

        with monkeypatch.context() as patch:
            patch.setattr(volume_store, "_discard", AsyncMock(side_effect=SystemError("killed")))
            scene.folder.files = {"a": b"new"}
            scene.folder.changed_at += 1

            with pytest.raises(SystemError):
                await scene.round()

        for entries in twice:
            async with scene.store.storing(volume, entries) as files:
                await files.put("a", pieces(b"both"))

        entries = await scene.store.entries(volume)
        await scene.store.remove(["a"], entries)
        assert await scene.store.entries(volume) == {}

    played(act)


def test_what_cannot_be_listed_is_kept(played):
    """What is below a folder that cannot be read, with the reason; all where that is the folder of the volume."""

    async def act(scene: Scene) -> None:
        scene.folder.folders = {"d": 0o755}
        scene.folder.files = {"d/a": b"1", "b": b"2"}
        await scene.round()
        scene.folder.folders = {"d": 0o000}
        scene.folder.files = {}

        for _ in range(3):
            await scene.round()

        assert set(await scene.store.entries(scene.mount.volume)) == {"d", "d/a"}
        assert scene.mount.left_out == {"d": "its mode forbids to read it; what was stored of it is kept"}
        scene.folder.folders = {}
        scene.folder.mode = 0o300

        for _ in range(2):
            with pytest.raises(VolumeError, match="forbids to read it: nothing is stored"):
                await scene.round()

        assert set(await scene.store.entries(scene.mount.volume)) == {"d", "d/a"}

    played(act)


def test_what_a_mapping_wrote_is_read_at_the_end(played):
    """It shows neither in the size nor in the time of its file."""

    async def act(scene: Scene) -> None:
        scene.folder.files = {"a": b"first"}
        await scene.round()
        scene.folder.files = {"a": b"later"}
        await scene.round()
        assert await scene.stored("a") == b"first"
        await scene.round(reads_all=True)
        assert await scene.stored("a") == b"later"

    played(act)


def test_writers_of_a_key_count_each_other(played, monkeypatch):
    """What one has stored without a record yet is no room for another."""
    monkeypatch.setattr(volume_store, "MAX_BYTES_OF_KEY", 5)

    async def act(scene: Scene) -> None:
        other = await scene.store.create("k", "w")

        async with scene.store.storing(scene.mount.volume, {}) as first:
            await first.put("a", pieces(b"123"))

            async with scene.store.storing(other, {}) as second:
                with pytest.raises(RequestTooLargeError):
                    await second.put("a", pieces(b"123"))

                await second.put("a", pieces(b"12"))

        assert scene.blobs_there() == 2

    played(act)


async def pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


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
