"""Records of files that are kept."""

from __future__ import annotations

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.storage.files import KeptFiles, StoredFile, StoredFiles, new_file_id

from .scenes import opened


def a_file(**values) -> StoredFile:
    given = {"id": new_file_id(), "session_id": "s", "owner": "k", "name": "a/ü 🧪.csv", "size_bytes": 2**33}
    given |= {"content_type": "text/csv", "blob": "files/ab/cd"}
    return StoredFile(**{**given, **values})


async def test_a_file_is_seen_by_its_owner_in_its_session(database_url, clock):
    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        first = await files.add(a_file(details={"kind": "user"}))
        clock.now += 1
        second = await files.add(
            a_file(modified_from=first.id, modified_from_session="s", expires_at=clock.now + 9)
        )
        await files.add(a_file(owner="other"))
        await files.add(a_file(session_id="other"))

        assert first.created_at == clock.now - 1
        assert await files.get(first.id, owner="k") == first
        assert await files.get(first.id, owner="k", session_id="s") == first
        assert await files.get(first.id, owner="k", session_id="other") is None
        assert await files.get(first.id, owner="other") is None
        assert await files.list("s", owner="k") == [first, second]
        assert await files.uses_of(first.blob) == 4

        clock.now += 9
        assert await files.get(second.id, owner="k") is None
        assert await files.list("s", owner="k") == [first]
        assert await files.expired() == [second]
        assert await files.remove(second)
        assert not await files.remove(second)

        await files.keep_until("s", owner="k", kind="files", expires_at=clock.now)
        assert [file.id for file in await files.expired()] == [first.id]


@pytest.mark.parametrize("odd", ["", "\x00", "\ud800", "x" * 10_000, "' OR 1=1 --", "../../etc/passwd"])
async def test_odd_names_of_files_find_nothing(database_url, odd):
    async with opened(database_url) as database:
        files = StoredFiles(database)
        kept = await files.add(a_file())
        assert await files.get(odd, owner="k") is None
        assert await files.get(kept.id, owner="k", session_id=odd or "-") is None
        assert await files.list(odd, owner="k") == []


@pytest.mark.parametrize(
    "values",
    [{"name": ""}, {"name": "a\x00"}, {"name": "\udc80"}, {"name": "x" * 1025}, {"size_bytes": -1},
     {"size_bytes": 2**63},
     {"content_type": "x" * 256}, {"session_id": "\x00"}, {"details": {"a": "x" * 5000}}, {"modified_from": ""}],
)  # fmt: skip
def test_what_no_database_holds_is_refused(values):
    with pytest.raises(InvalidArgumentError):
        a_file(**values)


async def test_what_an_owner_keeps_is_added_up(database_url, clock):
    """By kind, and also what is over: until it is removed it takes room."""
    async with opened(database_url) as database:
        files = StoredFiles(database, clock=clock)
        assert await files.kept_by("k", kind="files") == KeptFiles(0, 0)
        await files.add(a_file(size_bytes=2**62))
        await files.add(a_file(size_bytes=2**62 - 1, expires_at=clock.now - 1, session_id="other"))
        await files.add(a_file(owner="other"))
        await files.add(a_file(blob="other/ab/cd"))
        assert await files.kept_by("k", kind="files") == KeptFiles(2, 2**63 - 1)
