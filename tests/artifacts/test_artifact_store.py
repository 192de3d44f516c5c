"""Files of real sandboxes in a folder, on a server that speaks S3, and on one that speaks Azure's protocol."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.integration import storage_programs
from tests.integration.storage_programs import Place

from fumehood import (
    ArtifactStore,
    AsyncArtifactStore,
    AsyncSandbox,
    FileTooLargeError,
    InvalidArgumentError,
    PathNotFoundError,
    Sandbox,
    StorageError,
)
from fumehood.storage.artifacts import Bucket
from fumehood.storage.published_files import key_of

FIGURE = """
import base64
from IPython.display import display, Image
pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
display(Image(base64.b64decode(pixel)))
"""


@pytest.fixture(scope="module", params=["folder", "s3", "azure"])
def place(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("artifacts")

    if request.param == "folder":
        yield Place(str(folder / "out"), {})
        return

    opened = storage_programs.s3() if request.param == "s3" else storage_programs.azure(folder)

    with opened as place:
        yield place


@pytest.fixture
def store(place: Place) -> ArtifactStore:
    return ArtifactStore(place.location, options=place.options or None)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read()


def test_what_code_leaves_is_read_by_its_address(store, sandbox, place):
    """As bytes, by anybody who has the address; and only what is new comes the second time."""
    execution = sandbox.run_code(
        "import os; os.makedirs('/mnt/data/deep', exist_ok=True)\n"
        "open('/mnt/data/sums.csv', 'w').write('a,b\\n1,2\\n')\n"
        "open('/mnt/data/deep/page.html', 'w').write('<script>1</script>')\n"
        "open('/mnt/data/.hidden', 'w').write('x')\n"
        "os.symlink('/etc/passwd', '/mnt/data/link')\n" + FIGURE
    )
    assert execution.error is None

    try:
        files = store.publish(sandbox, execution=execution)
        named = {file.name: file for file in files}
        assert set(named) == {"figure-1.png", "sums.csv", "deep/page.html"}
        assert read(named["sums.csv"].url) == b"a,b\n1,2\n"
        assert read(named["figure-1.png"].url) == execution.results[0].png
        assert named["sums.csv"].path == "/mnt/data/sums.csv"
        assert (named["sums.csv"].mime, named["sums.csv"].size_bytes) == ("text/csv", 8)
        assert_expiry(named["sums.csv"], place)
        assert_headers(named, place)
        assert store.publish(sandbox) == []

        sandbox.run_code("open('/mnt/data/sums.csv', 'a').write('3,4\\n')")
        (again,) = store.publish(sandbox)
        # One path is as good as a list of one.
        assert [file.name for file in store.publish(sandbox, again.path)] == [again.name]
        assert (again.name, read(again.url)) == ("sums.csv", b"a,b\n1,2\n3,4\n")
        assert read(named["sums.csv"].url) == b"a,b\n1,2\n", "what was published stays as it was"
    finally:
        sandbox.run_code("import shutil; shutil.rmtree('/mnt/data/deep'); os.unlink('/mnt/data/link')")
        sandbox.run_code("os.unlink('/mnt/data/sums.csv'); os.unlink('/mnt/data/.hidden')")


def assert_expiry(file, place: Place) -> None:
    if not place.options:
        assert file.expires_at is None
        assert file.url.startswith("file:///")
        return

    left = file.expires_at - datetime.now(UTC)
    assert timedelta(minutes=55) < left <= timedelta(hours=1)
    assert "sig" in file.url.lower()


def assert_headers(named, place: Place) -> None:
    """What a browser is told: pictures may be shown, all else is kept as a file."""
    if not place.options:
        return

    for name, kind, shown in [
        ("figure-1.png", "image/png", "inline"),
        ("deep/page.html", "application/octet-stream", "attachment"),
        ("sums.csv", "text/csv", "attachment"),
    ]:
        with urllib.request.urlopen(named[name].url, timeout=30) as reply:
            assert reply.headers["Content-Type"] == kind
            assert reply.headers["Content-Disposition"].startswith(f"{shown}; filename=")


def test_without_its_signature_an_address_opens_nothing(store, place):
    """moto lets everybody in, so what is asked there is the signature's presence alone."""
    file = store.put("x.txt", b"x", group="alone")

    if "az" in place.location[:2]:
        with pytest.raises(urllib.error.HTTPError) as caught:
            read(file.url.partition("?")[0])

        assert caught.value.code in (401, 403, 404)
        caught.value.close()
    elif place.options:
        assert {"X-Amz-Signature", "X-Amz-Expires"} <= {
            pair.partition("=")[0] for pair in file.url.partition("?")[2].split("&")
        }


@pytest.mark.parametrize("place", ["azure"], indirect=True)
def test_an_address_ends(place):
    """The server refuses it once its time is over."""
    store = ArtifactStore(place.location, options=place.options, expires_seconds=1)
    file = store.put("x.txt", b"x")
    ended = None

    while ended is None:
        assert datetime.now(UTC) < file.expires_at + timedelta(seconds=20)

        try:
            read(file.url)
        except urllib.error.HTTPError as error:
            ended = error.code
            error.close()

    assert ended == 403
    assert datetime.now(UTC) >= file.expires_at - timedelta(seconds=1)


def test_streams_files_and_sizes(store, place):
    """A file of several parts; one that is too large leaves nothing."""
    content = os.urandom(12_000_000)
    assert read(store.put("big.bin", io.BytesIO(content)).url) == content
    assert read(store.put("empty.txt", b"").url) == b""
    small = ArtifactStore(place.location, options=place.options or None, max_file_bytes=1000)

    with pytest.raises(FileTooLargeError, match=r"big\.bin"):
        small.put("big.bin", io.BytesIO(content), group="bounded")

    assert small.put("ok.bin", b"x" * 1000, group="bounded").size_bytes == 1000


def test_what_was_published_of_a_sandbox_is_removed(store, place):
    files = [store.put(f"{number}.txt", b"x", group="gone") for number in range(3)]
    other = store.put("kept.txt", b"x", group="other")
    store.remove("gone")
    store.remove("gone")

    for file in files:
        with pytest.raises(urllib.error.URLError) as caught:
            read(file.url)

        getattr(caught.value, "close", lambda: None)()

    assert read(other.url) == b"x"


def test_numbers_and_bytes_of_one_sandbox_are_bounded(tmp_path):
    """A guest that leaves many files, a huge one and an endless one takes what is allowed and no more."""
    store = ArtifactStore(tmp_path, max_files=5, max_file_bytes=1000, max_total_bytes=3000)

    with Sandbox() as sandbox:
        sandbox.run_code(
            "for n in range(20): open(f'/mnt/data/f{n:02}', 'w').write('x' * 10)\n"
            "open('/mnt/data/a-huge', 'wb').truncate(300_000_000_000)"
        )
        files = store.publish(sandbox)
        assert [file.name for file in files if file.url] == [f"f{number:02}" for number in range(5)]
        skipped = [file for file in files if not file.url]
        assert "too many" in skipped[0].skipped
        assert skipped[-1].skipped.endswith("14 more were left out")

        with pytest.raises(InvalidArgumentError, match="files"):
            store.put("more", b"x", group=sandbox.id)

        proc = ArtifactStore(tmp_path, max_file_bytes=1000).publish(sandbox, ["/dev/zero", "/proc/kallsyms"])
        assert not any(file.url for file in proc)

        with pytest.raises(PathNotFoundError):
            store.publish(sandbox, ["/mnt/data/nothing"])


def test_hostile_names_stay_in_the_folder(tmp_path):
    inside = tmp_path / "out"
    store = ArtifactStore(inside)

    with Sandbox() as sandbox:
        sandbox.run_code(
            "for name in ['x..\\\\..\\\\x', '\\x1b[2J', 'a\\nb', '-rf', '\"; x', 'ü', '\\udcff']:\n"
            "    open('/mnt/data/' + name, 'w').write('x')"
        )
        files = store.publish(sandbox)

    assert [file.skipped for file in files if not file.url] == ["path='/mnt/data/\\udcff' is refused"]
    assert len(files) == 7
    assert all(file.name.isprintable() for file in files)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 6
    assert all(len(path.relative_to(inside).parts) == 3 and path.name.isascii() for path in found)
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}


def test_a_stream_that_fails_leaves_nothing(tmp_path):
    async def broken():
        yield b"x"
        raise ValueError("broken")

    store = ArtifactStore(tmp_path, max_files=1)

    with pytest.raises(ValueError, match="broken"):
        store.put("x", broken())

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.put("x", b"x").url, "what failed is not counted"


def test_the_asynchronous_store(tmp_path):
    async def scene() -> None:
        store = AsyncArtifactStore(tmp_path)

        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("open('/mnt/data/x.txt', 'w').write('x')")
            (file,) = await store.publish(sandbox)
            assert Path(file.url.removeprefix("file://")).read_text() == "x"
            await store.remove(sandbox.id)
            assert list(tmp_path.iterdir()) == []

    asyncio.run(scene())


@pytest.mark.parametrize("location", ["", "http://host/x", "ftp://host", "file:///tmp"])
def test_other_addresses_are_refused(location):
    with pytest.raises(InvalidArgumentError, match="location"):
        ArtifactStore(location)


@pytest.mark.parametrize(
    "arguments",
    [
        {"expires_seconds": 0},
        {"expires_seconds": 8 * 86_400},
        {"max_file_bytes": 0},
        {"max_files": True},
        {"options": {"region": "x"}},
    ],
)
def test_odd_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(InvalidArgumentError):
        ArtifactStore(tmp_path, **arguments)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageError):
        ArtifactStore(tmp_path / "file" / "out").put("x", b"x")


@pytest.mark.parametrize("place", ["s3", "azure"], indirect=True)
def test_a_bucket_that_is_not_there_is_reported(place):
    """A store that holds nothing is another matter than a file that it does not hold."""
    nowhere = place.location.partition("://")[0] + "://nowhere/prefix"

    with pytest.raises(StorageError, match="storing a file"):
        ArtifactStore(nowhere, options=place.options).put("x", b"x")


def test_the_place_comes_from_the_environment_and_a_folder_needs_no_obstore(tmp_path):
    """In a process in which obstore cannot be imported."""
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from fumehood import ArtifactStore, InvalidArgumentError\n"
        "print(ArtifactStore().put('x.txt', b'x').url)\n"
        "try: ArtifactStore('s3://bucket').put('x', b'x')\n"
        "except InvalidArgumentError as error: print(error.hint)\n"
    )
    envs = {**os.environ, "FUMEHOOD_ARTIFACTS": str(tmp_path / "here")}
    said = subprocess.run(
        [sys.executable, "-c", program], env=envs, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0].startswith((tmp_path / "here").as_uri())
    assert "fumehood[blobs]" in said[1]


def test_addresses_of_google_are_signed_by_the_service_account():
    """Signing asks nobody, so it needs no Google; that the file is stored there is not tested."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "private_key": key.decode(), "private_key_id": "x"}
    account |= {"client_email": "a@b.iam.gserviceaccount.com", "gcs_base_url": "http://127.0.0.1:1"}
    place = Bucket("gs://bucket/prefix", 60, {"service_account_key": json.dumps(account)})
    url, expires_at = asyncio.run(place.address(key_of("fh-1", "x.csv")))
    assert url.startswith("http://127.0.0.1:1/bucket/prefix/artifacts/")
    assert "X-Goog-Expires=60&X-Goog-Signature" in url.replace("X-Goog-SignedHeaders=host&", "")
    assert expires_at > datetime.now(UTC)
