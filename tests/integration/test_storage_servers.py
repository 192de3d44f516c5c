"""Blobs in a folder, on a server that speaks S3, and on one that speaks Azure's protocol: one behaviour."""

from __future__ import annotations

import asyncio
import os
import pathlib
import stat
import urllib.request
from collections.abc import AsyncIterator, Iterator

import pytest

from fumehood.errors import (
    BlobNotFoundError,
    InvalidArgumentError,
    PathNotFoundError,
    RequestTooLargeError,
    StorageError,
    StorageStartError,
)
from fumehood.storage.blobs import Blobs, open_blobs

from . import storage_programs
from .storage_programs import Place

MB = 1_000_000


@pytest.fixture(scope="module", params=["folder", "s3", "azure"])
def place(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("blobs")

    if request.param == "folder":
        yield Place(str(folder / "state" / "blobs"), {})
        return

    opened = storage_programs.s3() if request.param == "s3" else storage_programs.azure(folder)

    with opened as place:
        yield place


@pytest.fixture
def blobs(place: Place) -> Blobs:
    return open_blobs(place.location, options=place.options)


async def stream_of(megabytes: int, failure: Exception | None = None) -> AsyncIterator[bytes]:
    for number in range(megabytes):
        yield bytes([number % 256]) * MB

    if failure is not None:
        raise failure


async def bytes_of(reading) -> bytes:
    return b"".join([chunk async for chunk in reading.chunks])


async def names(blobs: Blobs, kind: str) -> set[str]:
    return {info.name async for info in blobs.list(kind)}


def test_bytes_come_back_as_they_were(blobs):
    async def scene() -> None:
        await blobs.check()

        for content in (b"", b"\x00\xff", os.urandom(3 * MB)):
            stored = await blobs.put(content)
            assert stored.size_bytes == len(content)
            found = await blobs.head(stored.name)
            assert (found.name, found.size_bytes, found.etag) == (stored.name, len(content), stored.etag)
            assert await bytes_of(await blobs.get(stored.name)) == content
            assert await blobs.read(stored.name, max_bytes=len(content)) == content

    asyncio.run(scene())


def test_a_long_stream_is_stored_in_parts(blobs):
    """More than three parts, of which two are in memory."""

    async def scene() -> None:
        stored = await blobs.put(stream_of(18))
        assert stored.size_bytes == (await blobs.head(stored.name)).size_bytes == 18 * MB
        content = await bytes_of(await blobs.get(stored.name))
        assert content == b"".join([chunk async for chunk in stream_of(18)])

        with pytest.raises(RequestTooLargeError):
            await blobs.read(stored.name, max_bytes=18 * MB - 1)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1, (0, 1)),
        (3, 7, (3, 7)),
        (9, None, (9, 10)),
        (5, 500, (5, 10)),
        (0, None, (0, 10)),
        (0, 10, (0, 10)),
    ],
)
def test_ranges(blobs, start, end, expected):
    async def scene() -> None:
        stored = await blobs.put(b"0123456789")
        reading = await blobs.get(stored.name, start=start, end=end)
        assert (reading.start, reading.end, reading.info.size_bytes) == (*expected, 10)
        assert await bytes_of(reading) == b"0123456789"[slice(*expected)]

    asyncio.run(scene())


@pytest.mark.parametrize(("start", "end"), [(10, None), (11, 12), (3, 3), (-1, None), (5, 4)])
def test_ranges_without_a_byte_are_refused(blobs, start, end):
    async def scene() -> None:
        stored = await blobs.put(b"0123456789")

        with pytest.raises(InvalidArgumentError, match="range"):
            await blobs.get(stored.name, start=start, end=end)

    asyncio.run(scene())


@pytest.mark.parametrize("megabytes", [0, 2, 12])
def test_a_stream_that_fails_leaves_nothing(blobs, place, megabytes):
    """Neither a blob nor a piece of one, whatever kind of error it is; the error is the stream's own."""
    failure = PathNotFoundError(path="/tmp/x", operation="read", errno_value=2)

    async def scene() -> None:
        for error in (failure, ValueError("broken"), FileNotFoundError("also")):
            with pytest.raises(type(error)) as caught:
                await blobs.put(stream_of(megabytes, error), kind="failing")

            assert caught.value is error

        with pytest.raises(RequestTooLargeError):
            await blobs.put(stream_of(megabytes + 1), kind="failing", max_bytes=megabytes * MB)

        assert await names(blobs, "failing") == set()
        assert unfinished(place) == []

    asyncio.run(scene())


def unfinished(place: Place) -> list[str]:
    """Pieces of uploads that the store still holds."""
    if place.location.startswith("s3://"):
        reply = storage_programs.ask(urllib.request.Request(f"{place.address}/bucket?uploads"))
        return ["upload"] * reply.count(b"<Upload>")

    # Azure removes blocks that were never committed by itself.
    root = pathlib.Path(place.location)
    return [path.name for path in root.rglob("*") if "#" in path.name] if root.exists() else []


def test_a_list_has_what_was_stored_and_only_its_kind(blobs):
    async def scene() -> None:
        stored = await asyncio.gather(*(blobs.put(b"x", kind="listed") for _ in range(30)))
        await blobs.put(b"x", kind="listedtoo")
        assert await names(blobs, "listed") == {info.name for info in stored}

        await blobs.delete_many([info.name for info in stored[:20]])
        assert await names(blobs, "listed") == {info.name for info in stored[20:]}
        assert await names(blobs, "none") == set()

    asyncio.run(scene())


def test_what_is_gone_is_reported(blobs):
    async def scene() -> None:
        name = (await blobs.put(b"x")).name
        await blobs.delete(name)
        await blobs.delete(name)

        for verb in (blobs.get, blobs.head):
            with pytest.raises(BlobNotFoundError):
                await verb(name)

    asyncio.run(scene())


ODD = [
    "",
    "/",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "files/../../x",
    "files",
    "files/ab/../ab/" + "a" * 32,
]
ODD += ["files/ab/" + "A" * 32, "files/ab/" + "a" * 31, "files/ab/" + "a" * 32 + "\n", "files\x00", None, "é"]


@pytest.mark.parametrize("name", ODD)
def test_only_names_of_ours_reach_the_store(blobs, name):
    async def scene() -> None:
        for verb in (blobs.get, blobs.head):
            with pytest.raises(BlobNotFoundError):
                await verb(name)

        await blobs.delete(name)

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["", "../x", "Files", "a" * 17, "a/b", "é"])
def test_kinds_are_letters(blobs, kind):
    with pytest.raises(InvalidArgumentError, match="kind"):
        asyncio.run(blobs.put(b"x", kind=kind))


def test_a_folder_is_for_its_user_alone(tmp_path):
    open_blobs(str(tmp_path / "state" / "blobs"))
    assert stat.S_IMODE((tmp_path / "state" / "blobs").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageStartError, match="file"):
        open_blobs(str(tmp_path / "file" / "blobs"))


@pytest.mark.parametrize("location", ["", "http://host/x", "ftp://host", "memory:///", "file:///tmp/x"])
def test_other_addresses_are_refused(location):
    with pytest.raises(InvalidArgumentError, match="blobs_url"):
        open_blobs(location)


def test_a_store_that_does_not_answer_is_reported_at_the_start_and_later():
    """Without its words in the message that a caller reads."""
    options = {"endpoint": "http://127.0.0.1:1", "access_key_id": "key", "secret_access_key": "secret"}

    async def scene() -> None:
        blobs = open_blobs("s3://bucket", options=options)

        with pytest.raises(StorageStartError, match="s3://bucket"):
            await blobs.check()

        with pytest.raises(StorageError) as caught:
            await blobs.put(b"x")

        assert caught.value.message == "the storage failed while storing a file"
        assert "127.0.0.1" in caught.value.reason

    asyncio.run(scene())


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_settings_come_from_the_usual_variables(place, monkeypatch):
    """Those that the tools of the store's vendor read as well."""
    for name, option in {
        "AWS_ENDPOINT_URL": "endpoint",
        "AWS_ACCESS_KEY_ID": "access_key_id",
        "AWS_SECRET_ACCESS_KEY": "secret_access_key",
        "AWS_REGION": "region",
    }.items():
        monkeypatch.setenv(name, place.options[option])

    async def scene() -> None:
        stored = await open_blobs(place.location).put(b"x")
        assert await open_blobs(place.location, options=place.options).read(stored.name, max_bytes=1) == b"x"

    asyncio.run(scene())


def test_an_upload_that_is_cancelled_leaves_nothing(tmp_path):
    """Whoever sent it has gone away."""

    async def scene() -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            async for chunk in stream_of(14):
                yield chunk

            begun.set()
            await asyncio.Event().wait()

        blobs = open_blobs(str(tmp_path))
        upload = asyncio.create_task(blobs.put(endless()))
        await begun.wait()
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        assert upload.cancelled()
        assert await names(blobs, "files") == set()

    asyncio.run(scene())


def test_an_unknown_setting_is_reported():
    with pytest.raises(StorageStartError):
        open_blobs("s3://bucket", options={"no_such_setting": "x"})
