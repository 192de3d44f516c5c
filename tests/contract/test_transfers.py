"""Files and folders go in and come out by one call each, and paths may be pathlib's."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from fumehood import DownloadError, InvalidArgumentError, PathNotFoundError


@pytest.fixture
def folder(tmp_path):
    """A folder of this machine with a file, and a file in a folder in it."""
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("x\n1\n")
    (tmp_path / "data" / "inner" / "b.bin").write_bytes(bytes(range(256)))
    return tmp_path / "data"


def test_a_file_is_found_by_its_name(sandbox, folder):
    """Without a path inside it lies where code looks first."""
    (written,) = sandbox.upload(folder / "a.csv")
    assert written.path == "/home/user/a.csv"
    assert sandbox.run_code("open('a.csv').read()").text == "'x\\n1\\n'"


def test_a_folder_goes_in_whole(sandbox, folder):
    """All files below it, under the name that was given."""
    written = sandbox.upload(str(folder), PurePosixPath("/mnt/data"))
    assert [info.path for info in written] == ["/mnt/data/a.csv", "/mnt/data/inner/b.bin"]
    assert sandbox.files.read(PurePosixPath("/mnt/data/inner/b.bin"), format="bytes") == bytes(range(256))


def test_what_is_not_there_cannot_go_in(sandbox, tmp_path):
    """The error is Python's own."""
    with pytest.raises(FileNotFoundError):
        sandbox.upload(tmp_path / "nothing")


def test_a_file_comes_out(sandbox, tmp_path):
    """Under a name of the caller's, or under its own in a folder."""
    sandbox.run_code("open('/mnt/data/out.txt', 'w').write('fine')")
    named = tmp_path / "new" / "mine.txt"
    assert sandbox.download("/mnt/data/out.txt", named) == [named]
    assert sandbox.download(PurePosixPath("/mnt/data/out.txt"), tmp_path) == [tmp_path / "out.txt"]
    assert named.read_text() == (tmp_path / "out.txt").read_text() == "fine"

    # The name in the folder is the sandbox's choice, and what is there may be the user's.
    with pytest.raises(DownloadError, match="already there"):
        sandbox.download("/mnt/data/out.txt", tmp_path)

    assert sandbox.download("/mnt/data/out.txt", tmp_path, overwrite=True) == [tmp_path / "out.txt"]


def test_a_folder_comes_out(sandbox, tmp_path):
    """All that is not hidden; links stay."""
    sandbox.run_code(
        "import os; os.makedirs('/mnt/data/deep')\n"
        "open('/mnt/data/one', 'w').write('1'); open('/mnt/data/deep/two', 'w').write('2')\n"
        "open('/mnt/data/.bashrc', 'w').write('evil'); os.symlink('/etc/passwd', '/mnt/data/link')"
    )
    written = sandbox.download("/mnt/data", tmp_path / "out")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in written) == ["out/deep/two", "out/one"]
    assert sorted(path.name for path in Path(tmp_path / "out").rglob("*")) == ["deep", "one", "two"]


def test_an_empty_folder_is_one_here_as_well(sandbox, tmp_path):
    """What follows may read the folder, whatever the code has left."""
    sandbox.files.make_dir("/mnt/data/none")
    assert sandbox.download("/mnt/data/none", tmp_path / "deep" / "none") == []
    assert [*(tmp_path / "deep" / "none").iterdir()] == []


def test_what_cannot_come_out_is_named(sandbox, tmp_path):
    """The rest comes; the error counts, and names each."""
    sandbox.run_code("open('/mnt/data/small', 'w').write('1'); open('/mnt/data/vast', 'w').truncate(1 << 30)")

    with pytest.raises(DownloadError, match="1 of 2 files were not downloaded") as lost:
        sandbox.download("/mnt/data", tmp_path)

    assert "/mnt/data/vast" in lost.value.left_out[0]
    assert (tmp_path / "small").read_text() == "1"

    with pytest.raises(PathNotFoundError):
        sandbox.download("/mnt/data/nothing", tmp_path)


def test_a_link_of_this_machine_is_not_followed_out(sandbox, tmp_path):
    """A link below the folder that leads out of it is no way out for names of the sandbox."""
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "deep").symlink_to(tmp_path)
    sandbox.run_code("import os; os.makedirs('/mnt/data/deep'); open('/mnt/data/deep/x', 'w').write('2')")

    with pytest.raises(DownloadError, match="leads out of"):
        sandbox.download("/mnt/data", tmp_path / "into")

    assert not (tmp_path / "x").exists()


def test_what_is_no_file_does_not_stop_the_engine(sandbox, folder):
    """Opening a FIFO would wait for its writer, and all sandboxes of this process with it."""
    os.mkfifo(folder / "pipe")

    with pytest.raises(InvalidArgumentError, match="pipe"):
        sandbox.upload(folder)

    assert sandbox.run_code("1 + 1").text == "2"


def test_a_folder_comes_out_however_deep(sandbox, tmp_path):
    """Of a tree that is deeper than one listing shows, the last file arrives too; dots alone hide no file."""
    sandbox.run_code(
        "import os; deep = '/mnt/data/' + '/'.join('d' * 150); os.makedirs(deep)\n"
        "open(deep + '/last', 'w').write('1'); open('/mnt/data/...', 'w').write('2')"
    )
    written = sandbox.download("/mnt/data", tmp_path / "out")
    assert sorted(path.name for path in written) == ["...", "last"]
    assert max(len(path.relative_to(tmp_path).parts) for path in written) == 152
