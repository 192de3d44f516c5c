"""Files of a sandbox: read, write, list, move, remove, watch; all of it inside the guest."""

from __future__ import annotations

import io
import resource
from datetime import UTC, datetime, timedelta

import pytest

from fumehood import (
    DiskFullError,
    FileError,
    FileTooLargeError,
    InvalidArgumentError,
    Limits,
    PathIsDirectoryError,
    PathNotDirectoryError,
    PathNotFoundError,
    PathNotTextError,
    PathPermissionError,
    WriteEntry,
)

MIB = 1024 * 1024


def test_what_is_written_is_read(sandbox):
    """Text and bytes come back as they went, and code inside sees the same."""
    sandbox.files.write("notes.txt", "häß \U0001f9ea\n")
    sandbox.files.write("/tmp/raw.bin", bytes(range(256)))

    assert sandbox.files.read("notes.txt") == "häß \U0001f9ea\n"
    assert sandbox.files.read("/home/user/notes.txt", format="text") == "häß \U0001f9ea\n"
    assert sandbox.files.read("/tmp/raw.bin", format="bytes") == bytes(range(256))
    assert sandbox.run_code("open('notes.txt', encoding='utf-8').read()").text == repr("häß \U0001f9ea\n")


def test_writing_gives_the_files_description(sandbox):
    """`write` returns what `get_info` would."""
    before = datetime.now(UTC)
    info = sandbox.files.write("notes.txt", "12345")

    assert (info.name, info.path, info.type) == ("notes.txt", "/home/user/notes.txt", "file")
    assert info.size_bytes == 5
    assert info.permissions == "-rw-r--r--"
    assert info.mode & 0o777 == 0o644
    assert (info.owner, info.group) == ("user", "user")
    assert before - timedelta(seconds=2) <= info.modified_at <= datetime.now(UTC) + timedelta(seconds=2)
    assert sandbox.files.get_info("notes.txt") == info


def test_parents_are_made(sandbox):
    """Directories on the way need not be there."""
    sandbox.files.write("a/b/c.txt", "deep")
    assert sandbox.files.get_info("a/b").type == "dir"


def test_writing_replaces_what_was_there(sandbox):
    """A shorter content leaves nothing of a longer one."""
    sandbox.files.write("a.txt", "x" * 100)
    sandbox.files.write("a.txt", "short")
    assert sandbox.files.read("a.txt") == "short"


def test_an_empty_file_is_a_file(sandbox):
    """No content is content."""
    assert sandbox.files.write("empty", "").size_bytes == 0
    assert sandbox.files.read("empty", format="bytes") == b""
    assert list(sandbox.files.read("empty", format="stream")) == []


@pytest.mark.parametrize(
    "make", [lambda: io.BytesIO(b"abc" * 1000), lambda: io.StringIO("abc" * 1000)], ids=["bytes", "text"]
)
def test_open_files_can_be_written(sandbox, make):
    """A file object is read in pieces, text as UTF-8."""
    assert sandbox.files.write("copy", make()).size_bytes == 3000
    assert sandbox.files.read("copy") == "abc" * 1000


def test_several_files_can_be_written_at_once(sandbox):
    """`write_files` keeps the order."""
    infos = sandbox.files.write_files([WriteEntry("a", "1"), WriteEntry("d/b", b"22")])
    assert [(info.path, info.size_bytes) for info in infos] == [("/home/user/a", 1), ("/home/user/d/b", 2)]


def test_a_stream_gives_the_file_in_pieces(sandbox):
    """Pieces are bounded and make up the whole."""
    content = bytes(range(256)) * (3 * MIB // 256)
    sandbox.files.write("big", content)
    pieces = list(sandbox.files.read("big", format="stream"))

    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= MIB


def test_a_stream_can_be_left_early(sandbox):
    """Leaving a stream costs nothing and harms nothing."""
    sandbox.files.write("big", b"x" * 3 * MIB)

    for piece in sandbox.files.read("big", format="stream"):
        assert piece
        break

    assert sandbox.files.exists("big")


class _Zeros(io.RawIOBase):
    """A file of zeros that exists nowhere."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def test_large_files_pass_in_constant_memory(face):
    """Many times what this process grows by goes up and comes back."""
    size = 192 * MIB
    sandbox = face.open(limits=Limits(disk_bytes=208 * MIB, memory_bytes=512 * MIB))
    sandbox.files.write("warm", _Zeros(8 * MIB))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert sandbox.files.write("huge", _Zeros(size)).size_bytes == size
    assert sum(len(piece) for piece in sandbox.files.read("huge", format="stream")) == size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown < 64 * 1024


def test_reading_a_whole_file_is_bounded(sandbox):
    """The caller's memory is not the guest's to fill: a file that claims to be endless is refused."""
    sandbox.run_code("open('sparse', 'wb').truncate(1 << 40)")

    with pytest.raises(FileTooLargeError, match="cannot read 'sparse'"):
        sandbox.files.read("sparse", format="bytes", max_bytes=10 * MIB)


def test_bytes_that_are_no_text_are_reported(sandbox):
    """Reading as text never guesses."""
    sandbox.files.write("raw", b"\xff\xfe\x00")

    with pytest.raises(PathNotTextError, match='format="bytes"'):
        sandbox.files.read("raw")


def test_listing_is_sorted_and_as_deep_as_asked(sandbox):
    """`list` describes each entry below a directory."""
    sandbox.files.write("tree/b.txt", "1")
    sandbox.files.write("tree/a/x/y.txt", "22")

    assert [entry.path for entry in sandbox.files.list("tree")] == [
        "/home/user/tree/a",
        "/home/user/tree/b.txt",
    ]
    deep = sandbox.files.list("tree", depth=3)
    assert [entry.name for entry in deep] == ["a", "x", "y.txt", "b.txt"]
    assert [entry.type for entry in deep] == ["dir", "dir", "file", "file"]


def test_links_are_described(sandbox):
    """A link to something has the type of what it leads to; a broken one is a symlink."""
    sandbox.run_code(
        "import os; open('t', 'w').close(); os.symlink('t', 'good'); os.symlink('nowhere', 'bad')"
    )
    entries = {entry.name: entry for entry in sandbox.files.list()}

    assert (entries["good"].type, entries["good"].symlink_target) == ("file", "t")
    assert (entries["bad"].type, entries["bad"].symlink_target) == ("symlink", "nowhere")


def test_existence(sandbox):
    """`exists` answers for files, directories and nothing."""
    sandbox.files.write("d/f", "")
    assert [sandbox.files.exists(path) for path in ("d/f", "d", "d/g")] == [True, True, False]


def test_directories_are_made_with_parents_and_only_once(sandbox):
    """`make_dir` tells whether it made something."""
    assert sandbox.files.make_dir("a/b/c") is True
    assert sandbox.files.make_dir("a/b/c") is False
    assert sandbox.files.get_info("a/b/c").type == "dir"


def test_rename_moves_files_and_directories(sandbox):
    """What is moved is at its new place and nowhere else."""
    sandbox.files.write("old/f", "x")
    info = sandbox.files.rename("old", "new/place")

    assert info.path == "/home/user/new/place"
    assert sandbox.files.read("new/place/f") == "x"
    assert not sandbox.files.exists("old")


def test_remove_takes_directories_with_all_that_is_in_them(sandbox):
    """What is removed is gone."""
    sandbox.files.write("d/e/f", "x")
    sandbox.files.remove("d")
    assert not sandbox.files.exists("d")


def test_removing_a_link_leaves_its_target(sandbox):
    """A link is removed, not what it leads to."""
    sandbox.run_code("import os; os.mkdir('t'); open('t/f', 'w').close(); os.symlink('t', 'l')")
    sandbox.files.remove("l")
    assert sandbox.files.exists("t/f")


@pytest.mark.parametrize(
    ("act", "kind", "builtin"),
    [
        (lambda files: files.read("no"), PathNotFoundError, FileNotFoundError),
        (lambda files: files.get_info("no"), PathNotFoundError, FileNotFoundError),
        (lambda files: files.list("no"), PathNotFoundError, FileNotFoundError),
        (lambda files: files.remove("no"), PathNotFoundError, FileNotFoundError),
        (lambda files: files.rename("no", "other"), PathNotFoundError, FileNotFoundError),
        (lambda files: files.watch("no"), PathNotFoundError, FileNotFoundError),
        (lambda files: list(files.read("no", format="stream")), PathNotFoundError, FileNotFoundError),
        (lambda files: files.read("/tmp"), PathIsDirectoryError, IsADirectoryError),
        (lambda files: files.write("/tmp", "x"), PathIsDirectoryError, IsADirectoryError),
        (lambda files: files.list("/etc/passwd"), PathNotDirectoryError, NotADirectoryError),
        (lambda files: files.watch("/etc/passwd"), PathNotDirectoryError, NotADirectoryError),
        (lambda files: files.write("/etc/passwd", "x"), PathPermissionError, PermissionError),
        (lambda files: files.write("/usr/x", "x"), PathPermissionError, PermissionError),
        (lambda files: files.make_dir("/usr/x"), PathPermissionError, PermissionError),
        (lambda files: files.remove("/etc/passwd"), PathPermissionError, PermissionError),
    ],
)
def test_errors_say_what_is_wrong_and_are_the_builtin_too(sandbox, act, kind, builtin):
    """Each error is of the product's tree and of Python's own, names the path, and gives a way out."""
    with pytest.raises(kind) as caught:
        act(sandbox.files)

    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, FileError)
    assert caught.value.path
    assert caught.value.path in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "path", ["", "a\0b", "x" * 5000, 5, None], ids=["empty", "nul", "long", "int", "none"]
)
def test_paths_that_are_none_are_refused(sandbox, path):
    """A path is checked before anything is sent."""
    for act in (sandbox.files.read, sandbox.files.get_info, sandbox.files.list, sandbox.files.watch):
        with pytest.raises(InvalidArgumentError):
            act(path)

    with pytest.raises(InvalidArgumentError):
        sandbox.files.write(path, "x")


@pytest.mark.parametrize("data", [5, None, ["a"], {"a": 1}], ids=str)
def test_content_that_is_none_is_refused(sandbox, data):
    """Only text, bytes and files can be written, and a refusal leaves no file."""
    with pytest.raises(InvalidArgumentError, match="data="):
        sandbox.files.write("f", data)

    assert not sandbox.files.exists("f")


@pytest.mark.parametrize(
    "name", ["with space", "новый", "quote'\"", "new\nline", "-rf", "%s{}", "\U0001f9ea", "..x"], ids=repr
)
def test_names_of_any_kind_are_names(sandbox, name):
    """A name is never interpreted."""
    sandbox.files.write(f"names/{name}", "x")

    assert [entry.name for entry in sandbox.files.list("names")] == [name]
    assert sandbox.files.read(f"names/{name}") == "x"
    sandbox.files.remove(f"names/{name}")
    assert sandbox.files.list("names") == []


def test_names_that_are_no_utf8_do_not_break_a_listing(sandbox):
    """What a guest calls its files cannot make a verb fail."""
    sandbox.run_code(
        "import os; os.mkdir('odd'); open(b'odd/\\xff\\xfe', 'w').close(); open('odd/ok', 'w').close()"
    )
    assert "ok" in [entry.name for entry in sandbox.files.list("odd")]


def test_the_disk_has_an_end(face):
    """More than `disk_bytes` is told as a full disk, the old content stays, and the sandbox lives on."""
    sandbox = face.open(limits=Limits(disk_bytes=8 * MIB))
    sandbox.files.write("f", "old")

    with pytest.raises(DiskFullError):
        sandbox.files.write("f", b"x" * 64 * MIB)

    assert sandbox.files.read("f") == "old"
    assert sandbox.run_code("1").text == "1"


def test_the_disk_has_an_end_for_all_mounts_together(face):
    """`disk_bytes` is the total of the writable mounts, wherever the bytes lie."""
    sandbox = face.open(limits=Limits(disk_bytes=8 * MIB))

    def fill() -> None:
        for mount in ("/home/user", "/tmp", "/mnt/data", "/dev/shm"):
            sandbox.files.write(f"{mount}/part", b"x" * 4 * MIB)

    with pytest.raises(DiskFullError):
        fill()


def test_inodes_have_an_end(face):
    """More files than `inodes` are refused inside, and the sandbox lives on."""
    sandbox = face.open(limits=Limits(inodes=256))
    execution = sandbox.run_code("for i in range(10_000): open(f'/tmp/{i}', 'w').close()")

    assert execution.error.name == "OSError"
    assert sandbox.run_code("1").text == "1"


def test_a_watch_hears_what_happens_after_it_began(sandbox):
    """Creating, writing, renaming and removing are told with their names."""
    sandbox.files.make_dir("d")

    with sandbox.files.watch("d") as changes:
        sandbox.run_code(
            "import os\nopen('d/a', 'w').write('x')\nos.rename('d/a', 'd/b')\n"
            "os.chmod('d/b', 0o600)\nos.remove('d/b')"
        )
        seen: list[tuple[str, str]] = []

        for change in changes:
            seen.append((change.kind, change.name))

            if change.kind == "remove":
                break

    assert seen[0] == ("create", "a")
    assert ("write", "a") in seen
    assert "rename" in [kind for kind, _ in seen]
    assert ("chmod", "b") in seen
    assert seen[-1] == ("remove", "b")


def test_a_watch_gives_absolute_paths(sandbox):
    """A change tells where it was, as other verbs want it."""
    sandbox.files.make_dir("d")

    with sandbox.files.watch("d") as changes:
        sandbox.files.write("d/file", "x")
        assert next(changes).path.startswith("/home/user/d/")


def test_a_recursive_watch_hears_directories_that_are_new(sandbox):
    """What is made below later is watched too."""
    sandbox.files.make_dir("d")

    with sandbox.files.watch("d", recursive=True) as changes:
        sandbox.run_code("import os\nos.makedirs('d/sub')")

        while next(changes).name != "sub":
            pass

        sandbox.run_code("open('d/sub/file', 'w').write('x')")

        while next(changes).name != "sub/file":
            pass


def test_a_closed_watch_ends(sandbox):
    """Nothing comes from a watch that was closed."""
    watch = sandbox.files.watch(".")
    watch.close()
    assert list(watch) == []
