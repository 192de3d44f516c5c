"""Files that are removed: what was kept for longer meanwhile stays, and no bytes are left that nothing knows of."""

from __future__ import annotations

import errno

import pytest

from fumehood.errors import StorageError
from fumehood.server.retention import remove_expired_files
from fumehood.storage.blobs import Blobs, open_blobs
from fumehood.storage.files import NO_BLOB, StoredFile, StoredFiles, discard_file, new_file_id

from .scenes import opened


async def kept(files: StoredFiles, blobs: Blobs, *, expires_at: float | None, owner: str = "k") -> StoredFile:
    blob = await blobs.put(b"bytes")
    file = StoredFile(
        id=new_file_id(), session_id="s", owner=owner, name="n", size_bytes=5, content_type="text/plain",
        blob=blob.name, expires_at=expires_at,
    )  # fmt: skip
    return await files.add(file)


async def names(blobs: Blobs) -> list[str]:
    return [info.name async for info in blobs.list("files")]


class Meddled(StoredFiles):
    """Files with which something happens right after housekeeping has looked for expired ones."""

    async def expired(self, *, limit: int = 1000):
        found = await super().expired(limit=limit)

        for file in found:
            # As another server sees it, whose clock is a little behind.
            self._clock.now -= 1
            await self.keep_until(
                file.session_id, owner=file.owner, kind="files", expires_at=self._clock.now + 100
            )
            self._clock.now += 1

        return found


async def test_a_file_that_is_kept_at_the_last_moment_stays(database_url, clock, tmp_path):
    blobs = open_blobs(str(tmp_path / "blobs"))

    async with opened(database_url) as database:
        files = Meddled(database, clock=clock)
        file = await kept(files, blobs, expires_at=clock.now)
        assert await remove_expired_files(files, blobs) == 0
        assert (await files.get(file.id, owner="k")).blob == file.blob
        assert await blobs.read(file.blob, max_bytes=5) == b"bytes"


async def test_a_file_that_is_over_is_not_kept_any_more(database_url, clock, tmp_path):
    """Its bytes may be gone already."""
    blobs = open_blobs(str(tmp_path / "blobs"))

    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        file = await kept(files, blobs, expires_at=None)
        assert await files.end(file)
        assert not await files.end(file)
        await files.keep_until("s", owner="k", kind="files", expires_at=clock.now + 100)
        assert await files.get(file.id, owner="k") is None
        assert await remove_expired_files(files, blobs) == 1
        assert await names(blobs) == []


async def test_bytes_that_could_not_be_removed_are_removed_later(database_url, clock, tmp_path, monkeypatch):
    """One that fails holds up no other."""
    blobs = open_blobs(str(tmp_path / "blobs"))
    stuck: set[str] = set()
    delete = blobs.delete

    async def sometimes(name: str) -> None:
        if name in stuck:
            raise StorageError(operation="removing a file", reason=f"errno {errno.EIO}")

        await delete(name)

    monkeypatch.setattr(blobs, "delete", sometimes)

    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        expired = [await kept(files, blobs, expires_at=clock.now - 9 + place) for place in range(3)]
        mine = await kept(files, blobs, expires_at=None)
        stuck |= {expired[0].blob, mine.blob}

        with pytest.raises(StorageError):
            await discard_file(files, blobs, mine)

        assert await files.get(mine.id, owner="k") is None
        assert await remove_expired_files(files, blobs) == 2
        assert set(await names(blobs)) == stuck
        stuck.clear()
        assert await remove_expired_files(files, blobs) == 2
        assert await names(blobs) == []
        assert await files.expired() == []


async def test_bytes_that_are_shared_stay_for_the_other(database_url, clock, tmp_path):
    blobs = open_blobs(str(tmp_path / "blobs"))

    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        file = await kept(files, blobs, expires_at=clock.now)
        values = {name: getattr(file, name) for name in StoredFile.__slots__}
        other = await files.add(StoredFile(**{**values, "id": new_file_id(), "expires_at": None}))
        assert await remove_expired_files(files, blobs) == 1
        assert await blobs.read(file.blob, max_bytes=5) == b"bytes"
        assert await discard_file(files, blobs, other)
        assert not await discard_file(files, blobs, other)
        assert await names(blobs) == []


async def test_what_has_no_bytes_is_removed(database_url, clock, tmp_path):
    """A folder of a volume, of which an interruption has left the record."""
    blobs = open_blobs(str(tmp_path / "blobs"))

    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        file = await kept(files, blobs, expires_at=clock.now)
        values = {name: getattr(file, name) for name in StoredFile.__slots__}
        await files.add(StoredFile(**{**values, "id": new_file_id(), "blob": NO_BLOB}))
        assert await remove_expired_files(files, blobs) == 2
        assert await names(blobs) == []
