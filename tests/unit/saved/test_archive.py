"""The file of a saved state: what it must be, and what anybody could make of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import struct
import zipfile
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fumehood.errors import LoadError, SavedStateDamagedError, SavedStateVersionError
from fumehood.saved import json_in_pieces
from fumehood.saved.archive import ArchiveReader, ArchiveWriter
from fumehood.saved.manifest import read_manifest

CONTENT = b"content " * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PART = {"name": "files/1", "size_bytes": len(CONTENT), "sha256": DIGEST}
FILE = {
    "path": "/home/user/a",
    "type": "file",
    "mode": 0o644,
    "modified_ns": 1,
    "content": PART,
    "target": "",
}
CONTEXT = {"id": "default", "language": "python", "cwd": "/home/user"}
MANIFEST = {
    "format": "fumehood-state",
    "version": 1,
    "fumehood": "0",
    "python": "3",
    "template": "default",
    "sandbox_id": "s",
    "saved_at": "now",
    "contexts": [CONTEXT],
    "files": [FILE],
}


@pytest.fixture
def write(tmp_path):
    """Writes an archive of these members, and returns its path."""

    def write(*members, compression=zipfile.ZIP_DEFLATED, edit=lambda archive: None):
        path = tmp_path / "state"

        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, data in members:
                archive.writestr(name, data)

            edit(archive)

        return path

    return write


def manifest(**changes):
    return "manifest.json", json.dumps({**MANIFEST, **changes})


def load(path):
    """Reads all there is, as loading does."""

    async def read():
        with ArchiveReader(path) as archive:
            found = read_manifest(await archive.manifest(), archive.names)
            return [
                await archive.content(file.content, 1 << 20)
                for file in found.files
                if file.content is not None
            ]

    return asyncio.run(read())


def test_what_was_written_is_read(tmp_path):
    """By a writer that cannot seek."""

    async def write():
        archive = ArchiveWriter()
        part = archive.begin("files/1")
        pieces = [await part.write(CONTENT[:100]), await part.write(CONTENT[100:]), await part.end()]
        assert part.part.sha256 == DIGEST
        return b"".join([*pieces, await archive.end(json.dumps(MANIFEST).encode())])

    path = tmp_path / "state"
    path.write_bytes(asyncio.run(write()))
    assert load(path) == [CONTENT]


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ([("files/1", CONTENT)], "manifest.json"),
        ([manifest()], "manifest.json"),
        ([manifest(), ("files/1", CONTENT), ("files/2", b"")], "manifest.json"),
        ([manifest(), ("files/1", CONTENT + b"x")], "files/1"),
        ([manifest(), ("files/1", CONTENT[:-1])], "files/1"),
        ([manifest(), ("files/1", CONTENT[:-1] + b"x")], "files/1"),
        ([manifest(), ("../../etc/passwd", b"")], "../../etc/passwd"),
        ([manifest(), ("/etc/passwd", b"")], "/etc/passwd"),
        ([manifest(), ("files/1", CONTENT), ("files/٣", b"")], "files/٣"),
        ([manifest(), ("files/1", CONTENT), ("files/1", CONTENT)], "the file"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_f09_other_members_are_refused(write, members, part):
    """What is missing, too much, different, twice, or has a name of its own."""
    with pytest.raises(SavedStateDamagedError) as caught:
        load(write(*members))

    assert caught.value.part == part


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "else"},
        {"contexts": []},
        {"contexts": [{**CONTEXT, "language": "bash"}]},
        {"contexts": [CONTEXT, CONTEXT]},
        {"contexts": [{**CONTEXT, "cwd": "a\0b"}]},
        {"contexts": [{**CONTEXT, "environment": {"a=b": "c"}}]},
        {"contexts": [{**CONTEXT, "execution_count": -1}]},
        {"contexts": [{**CONTEXT, "variables": [{"name": "x", "type": "t", "size_bytes": 5, "sha256": ""}]}]},
        {"contexts": 5},
        {"envs": {"A": 1}},
        {"template": ""},
        *(
            {"files": [{**FILE, "path": path}]}
            for path in ("/etc/passwd", "a", "/home/user/../x", "/tmp", "/tmp/")
        ),
        {"files": [{**FILE, "path": "/tmp/\ud800"}]},
        {"files": [FILE, FILE]},
        {"files": [{**FILE, "type": "device"}]},
        {"files": [{**FILE, "mode": -1}]},
        {"files": [{**FILE, "mode": 1 << 20}]},
        {"files": [{**FILE, "modified_ns": 1 << 70}]},
        {"files": [{**FILE, "content": None}]},
        {"files": [{**FILE, "type": "dir"}]},
        {"files": [{**FILE, "type": "hardlink", "content": None, "target": "/etc/passwd"}]},
        {"files": [{**FILE, "content": {**PART, "name": "../x"}}]},
        {"files": [{**FILE, "content": {**PART, "name": "files/9"}}]},
        {"files": [{**FILE, "content": {**PART, "size_bytes": -1}}]},
        {"files": [{**FILE, "content": {**PART, "size_bytes": 1 << 60}}]},
        {"files": [{**FILE, "content": {**PART, "sha256": "x"}}]},
        {"files": [FILE, {**FILE, "path": "/tmp/b"}]},
    ],
    ids=str,
)
def test_a_manifest_without_sense_is_refused(write, changes):
    """Before anything of it is used."""
    with pytest.raises(SavedStateDamagedError) as caught:
        load(write(manifest(**changes), ("files/1", CONTENT)))

    assert caught.value.part == "manifest.json"


@pytest.mark.parametrize("version", [0, 2, 999, "1", None, True, 1.0])
def test_another_version_is_refused(write, version):
    """It says which."""
    with pytest.raises(SavedStateVersionError, match="reads version 1"):
        load(write(manifest(version=version)))


def test_an_image_of_a_memory_is_refused(write):
    """There is a place for it, and no runtime that could use it."""
    memory = {"name": "memory/1", "size_bytes": 1, "sha256": DIGEST}

    with pytest.raises(LoadError, match="whole memory"):
        load(write(manifest(memory=memory), ("files/1", CONTENT)))


@pytest.mark.parametrize("data", [b"", b"PK", b"\0" * 100, b"no archive at all" * 100, b"[" * 100_000])
def test_other_files_are_refused(tmp_path, data):
    """Whatever they are."""
    path = tmp_path / "state"
    path.write_bytes(data)

    with pytest.raises(SavedStateDamagedError, match="not a saved state"):
        load(path)


def test_nesting_without_end_is_refused(write):
    """Of the manifest."""
    with pytest.raises(SavedStateDamagedError):
        load(write(("manifest.json", "[" * 100_000)))


def test_a_manifest_of_too_many_values_is_not_parsed(write):
    """They would take more memory than the file; text may be as long as it likes."""
    for many in (
        b'{"more": [' + b"[]," * 400_000 + b"0]}",
        b'{"more": [' + (b"[" + b"{}," * 1000 + b"0],") * 3000 + b"0]}",
        b'{"more": {' + b",".join(b'"%d":1' % n for n in range(30_000)) + b"}}",
        b'{"more": {"more": {"more": {"more": {"more": [' + b"[]," * 600_000 + b"0]}}}}}",
    ):
        with pytest.raises(SavedStateDamagedError, match=r"more than|too much of it at once"):
            load(write(("manifest.json", many)))

    text = json.dumps({**MANIFEST, "more": ",[{" * 300_000})
    assert load(write(("manifest.json", text), ("files/1", CONTENT))) == [CONTENT]


def central(name: bytes) -> bytes:
    """What the directory of a ZIP says of an empty part."""
    return (
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0)
        + name
    )


def test_f09_parts_are_counted_where_they_are(write):
    """An end that says three does not make two hundred thousand parts in the directory fewer."""
    path = write(manifest(), ("files/1", CONTENT))
    data = path.read_bytes()
    # Control: it can be loaded.
    assert load(path) == [CONTENT]
    place = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")

    for count, told, reason in ((200_000, 3, "another number of parts"), (200_000, 65_535, "another number")):
        directory = data[place:end] + b"".join(central(b"files/%d" % n) for n in range(2, count))
        wrong = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, told, told, len(directory), place, 0)
        path.write_bytes(data[:place] + directory + wrong)

        with pytest.raises(SavedStateDamagedError, match=reason):
            load(path)


def test_f09_more_variables_than_any_sandbox_has_are_refused_before_they_are_read(write):
    """Of all contexts together: each costs time and memory."""
    variables = [{"name": str(n), "type": "", "size_bytes": 0, "sha256": ""} for n in range(10_000)]
    contexts = [{**CONTEXT, "id": str(n), "variables": variables} for n in range(11)]

    with pytest.raises(SavedStateDamagedError, match="variables"):
        load(write(manifest(contexts=contexts), ("files/1", CONTENT)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)


@example([[0], -12.5], None, (4, 16, 1 << 20))
@example([1e100, 1.5e-7], 1, (4, 16, 1 << 20))
@given(VALUES, st.sampled_from([None, 1]), st.sampled_from([(1 << 20,), (8, 1 << 20), (4, 16, 1 << 20)]))
def test_json_read_in_pieces_is_the_same(value, indent, windows):
    """However small the pieces are."""
    with mock.patch.object(json_in_pieces, "_WINDOWS", windows):
        assert json_in_pieces.parse_in_pieces(json.dumps(value, indent=indent).encode()) == value


@given(st.text(alphabet='{}[]",:1a \\n.eE-+tru', max_size=12))
def test_what_is_no_json_is_none_in_pieces(text):
    """It is refused where Python refuses it, and nowhere else."""
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match="character"):
            json_in_pieces.parse_in_pieces(text.encode())

        return

    assert json_in_pieces.parse_in_pieces(text.encode()) == expected


def test_another_packing_is_refused(write):
    """One of ours is deflated or stored."""
    with pytest.raises(SavedStateDamagedError, match="packed"):
        load(write(manifest(), ("files/1", CONTENT), compression=zipfile.ZIP_LZMA))


def test_f09_a_bomb_takes_no_room(write):
    """Of what is longer than the manifest says, no more than a piece is unpacked."""
    with pytest.raises(SavedStateDamagedError, match="longer"):
        load(write(manifest(), ("files/1", b"\0" * (64 << 20))))


def test_a_directory_that_is_too_large_is_not_read(write):
    """It would be held in memory."""
    path = write(manifest())
    data = bytearray(path.read_bytes())
    data[-10:-6] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)

    with pytest.raises(SavedStateDamagedError, match="more parts"):
        load(path)


def test_a_directory_with_two_ends_is_not_read(tmp_path):
    """One that we would look at, and is small, and one that the library would read, and is not."""
    small = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, 100, 0)
    packed = io.BytesIO()

    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("files/1", small)

        for number in range(2, 600):
            info = zipfile.ZipInfo(f"files/{number}")
            info.comment = b"x" * 65_000
            archive.writestr(info, b"")

        archive.writestr("manifest.json", json.dumps(MANIFEST))

    data = packed.getvalue()
    *_, parts, size_bytes, start, _ = struct.unpack("<4s4H2LH", data[-22:])
    large = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, parts, parts, size_bytes, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, data.index(small), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path = tmp_path / "state"
    path.write_bytes(data[:-22] + large + locator + end)

    with pytest.raises(SavedStateDamagedError, match="not where it says"):
        load(path)


def test_every_cut_and_every_changed_byte_is_an_error_of_ours(write):
    """Nothing else comes out, and never something wrong."""
    whole = write(manifest(), ("files/1", CONTENT[:50]))
    part = {**PART, "size_bytes": 50, "sha256": hashlib.sha256(CONTENT[:50]).hexdigest()}
    whole = write(manifest(files=[{**FILE, "content": part}]), ("files/1", CONTENT[:50]), compression=0)
    data = whole.read_bytes()
    assert load(whole) == [CONTENT[:50]]

    for place in range(0, len(data), 3):
        for changed in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            whole.write_bytes(changed)
            try:
                found = load(whole)
            except LoadError:
                continue

            assert found == [CONTENT[:50]], place


def test_the_reader_reads_what_zip_tools_write(tmp_path):
    """An owner may look into it and pack it again with any tool."""
    buffer = io.BytesIO()

    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(*manifest())
        archive.writestr("files/1", CONTENT)

    path = tmp_path / "state"
    path.write_bytes(buffer.getvalue())
    assert load(path) == [CONTENT]
