"""Bringing files back: the guest chose the names and the sizes, the host decides what becomes of them."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from fumehood import FileError, InvalidArgumentError, Result
from fumehood.api import transfers
from fumehood.api.artifacts import list_tree, save_files, save_pictures
from fumehood.portal import call


class Files:
    """The files of a sandbox, as far as they are needed here."""

    def __init__(self, entries=(), *, endless=False) -> None:
        self.entries = list(entries)
        self.endless = endless

    @property
    def _async(self):
        return self

    async def exists(self, path):
        return bool(self.entries)

    async def list(self, path=".", *, depth=1):
        below = [entry for entry in self.entries if entry.path.startswith(f"{path}/")]
        return [entry for entry in below if entry.path.count("/") - path.count("/") <= depth]

    async def read(self, path, *, format):
        return self._chunks()

    async def _chunks(self):
        while True:
            yield b"x" * 100

            if not self.endless:
                return


def names(directory) -> list[str]:
    found = [os.path.join(root, name) for root, _, files in os.walk(directory) for name in files]
    return sorted(os.path.relpath(path, directory) for path in found)


def test_files_are_saved_under_their_own_names(tmp_path, describe):
    """Directories are made as they were, links and directories themselves are passed over."""
    entries = [
        describe("/mnt/data/a.txt", 100),
        describe("/mnt/data/d", 0, type="dir"),
        describe("/mnt/data/d/b.txt", 100),
        describe("/mnt/data/link", 100, symlink_target="/etc/passwd"),
    ]
    saved = save_files(Files(), entries, root="/mnt/data", into=str(tmp_path / "out"))

    assert names(tmp_path / "out") == ["a.txt", "d/b.txt"]
    assert [(item.source, item.size_bytes, item.skipped) for item in saved] == [
        ("/mnt/data/a.txt", 100, ""),
        ("/mnt/data/d/b.txt", 100, ""),
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/mnt/data/../../etc/cron.d/x",
        "/mnt/data/..",
        "/mnt/data//x",
        "/mnt/data/./x",
        "/etc/passwd",
        "relative",
        "/mnt/data/",
        "/mnt/datax/y",
        "/mnt/data/" + "n" * 300,
    ],
)
def test_no_name_leads_out_of_the_directory(tmp_path, describe, path):
    """A name that is no plain path below the root is left out, and said."""
    saved = save_files(Files(), [describe(path, 100)], root="/mnt/data", into=str(tmp_path / "out"))

    assert saved[0].skipped == "its name is no safe path"
    assert names(tmp_path) == []


def test_control_characters_in_names_are_spelled_out(tmp_path, describe):
    """A file of the host has a name that can be looked at."""
    save_files(Files(), [describe("/r/a\x1b[2J\nb", 100)], root="/r", into=str(tmp_path))
    assert names(tmp_path) == ["a\\x1b[2J\\nb"]


def test_a_link_of_the_host_does_not_lead_out(tmp_path, describe):
    """What was in the directory before is not followed."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "d").symlink_to(tmp_path / "secret")
    saved = save_files(Files(), [describe("/r/d/x", 100)], root="/r", into=str(tmp_path / "out"))

    assert "leads out" in saved[0].skipped
    assert names(tmp_path / "secret") == []


def test_no_folder_is_made_through_a_link_of_the_host(tmp_path, describe):
    """A path is looked at before folders are made for it, also behind a link that leads to nothing yet."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "d").symlink_to(tmp_path / "secret")
    (tmp_path / "out" / "e").symlink_to(tmp_path / "later")
    entries = [describe("/r/d/new/dir/x", 100), describe("/r/e/x", 100), describe("/r/plain/new/x", 100)]
    saved = save_files(Files(), entries, root="/r", into=str(tmp_path / "out"))

    assert ["leads out" in item.skipped for item in saved] == [True, True, False]
    assert os.listdir(tmp_path / "secret") == []
    assert not (tmp_path / "later").exists()
    assert names(tmp_path / "out" / "plain") == ["new/x"]


def test_a_file_that_cannot_be_brought_back_does_not_keep_others_back(tmp_path, describe):
    """A name that is no text, a file in the place of a folder, and a folder in the place of a file are said."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    paths = ["/r/a", "/r/m\udcff", "/r/d\udcff/x", "/r/file/x", "/r/folder", "/r/z"]
    saved = save_files(
        Files(), [describe(path, 100) for path in paths], root="/r", into=str(tmp_path), overwrite=True
    )

    no_text = "its name is no text in UTF-8"
    assert [item.skipped for item in saved] == ["", no_text, no_text, "File exists", "Is a directory", ""]
    assert names(tmp_path) == ["a", "file", "z"]
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_replaced_unless_that_is_wanted(tmp_path, describe):
    """A guest cannot overwrite a Makefile by choosing its name."""
    (tmp_path / "Makefile").write_text("mine")
    entry = describe("/r/Makefile", 100)

    assert "already there" in save_files(Files(), [entry], root="/r", into=str(tmp_path))[0].skipped
    assert (tmp_path / "Makefile").read_text() == "mine"

    save_files(Files(), [entry], root="/r", into=str(tmp_path), overwrite=True)
    assert (tmp_path / "Makefile").read_bytes() == b"x" * 100


def save_bounded(files, entries, into, *, max_bytes):
    return call(transfers.save_files, files._async, entries, root="/r", into=str(into), max_bytes=max_bytes)


def test_what_is_brought_back_is_bounded(tmp_path, describe):
    """Neither a size that is claimed nor one that was not can fill the disk."""
    claimed = save_files(Files(), [describe("/r/a", 1 << 60)], root="/r", into=str(tmp_path))
    assert "too many" in claimed[0].skipped

    endless = Files(endless=True)
    grown = save_bounded(endless, [describe("/r/b", 100)], tmp_path, max_bytes=10_000)
    assert "too large" in grown[0].skipped
    assert names(tmp_path) == []


def test_the_bound_is_for_all_files_together(tmp_path, describe):
    """Many small files count like one large one."""
    entries = [describe(f"/r/{number}", 100) for number in range(5)]
    saved = save_bounded(Files(), entries, tmp_path, max_bytes=250)
    assert [bool(item.skipped) for item in saved] == [False, False, True, True, True]


def test_a_file_that_is_gone_by_then_is_said(tmp_path, describe):
    """A guest may remove its files at any moment."""

    class Gone(Files):
        async def read(self, path, *, format):
            raise FileError.from_errno(path=path, operation="read", errno_value=2)

    saved = save_files(Gone(), [describe("/r/a", 1)], root="/r", into=str(tmp_path))
    assert "No such file" in saved[0].skipped
    assert names(tmp_path) == []


def test_hidden_files_are_left_where_they_are(describe):
    """Caches and settings are no results."""
    paths = ["/h/a", "/h/.cache/x", "/h/d/.hidden", "/h/d/b", "/h/.profile"]
    files = Files([describe(path, 1) for path in paths])
    assert [entry.path for entry in list_tree(files, "/h")] == ["/h/a", "/h/d/b"]


def test_a_tree_is_listed_to_its_end(describe):
    """A directory where one listing ends begins the next; a hidden one, or a link, does not."""
    paths = ["/h" + "/d" * depth for depth in range(1, 130)]
    ends = ["/h" + "/d" * 63 + name for name in ("/.hidden", "/link")]
    files = Files(
        [
            *(describe(path, 0, type="dir") for path in (*paths, ends[0])),
            describe(ends[1], 0, type="dir", symlink_target="/etc"),
            *(describe(f"{path}/last", 1) for path in (paths[-1], *ends)),
        ]
    )
    found = [entry.path for entry in list_tree(files, "/h") if entry.type == "file"]
    assert found == [f"{paths[-1]}/last"]


def test_a_tree_has_a_bound(describe, monkeypatch):
    """A guest can make more entries than a machine should hold."""
    monkeypatch.setattr(transfers, "_MAX_ENTRIES", 10)
    files = Files([describe(f"/h/{number}", 1) for number in range(11)])

    with pytest.raises(InvalidArgumentError, match="at most 10 entries"):
        list_tree(files, "/h")


def test_dots_alone_hide_no_file(describe):
    """`...` is an ordinary name of a file, and of a folder."""
    files = Files([describe(path, 1) for path in ("/h/...", "/h/.../a", "/h/...b")])
    assert [entry.path for entry in list_tree(files, "/h")] == ["/h/...", "/h/.../a"]


def test_a_picture_in_place_of_a_link_is_an_ordinary_file(tmp_path):
    """A link has the mode 0777, which is none of the file's; what it leads to stays as it was."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "figure-1.png").symlink_to(tmp_path / "mine")
    (tmp_path / "figure-2.png").write_text("old")
    (tmp_path / "figure-2.png").chmod(0o640)
    pictures = [Result(parts={"image/png": b"one"}), Result(parts={"image/png": b"two"})]
    save_pictures(pictures, into=str(tmp_path), stem="figure", may_replace=lambda _: True)

    (tmp_path / "plain").write_text("")
    modes = [(tmp_path / name).lstat().st_mode for name in ("plain", "figure-1.png", "figure-2.png")]
    assert modes[1:] == [modes[0], stat.S_IFREG | 0o640]
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_picture_that_cannot_be_written_leaves_no_empty_file(tmp_path, monkeypatch):
    """Its name was taken before the disk was full; a file that was there stays."""
    (tmp_path / "figure-1.png").write_text("mine")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)

    for may_replace in (True, False):
        with pytest.raises(OSError, match="No space left"):
            save_pictures(
                [Result(parts={"image/png": b"one"})],
                into=str(tmp_path),
                stem="figure",
                may_replace=lambda _, answer=may_replace: answer,
            )

    assert os.listdir(tmp_path) == ["figure-1.png"]
    assert (tmp_path / "figure-1.png").read_text() == "mine"


def test_pictures_are_numbered_and_replace_nothing(tmp_path):
    """A figure takes the next name that is not in use."""
    (tmp_path / "figure-1.png").write_text("mine")
    results = [
        Result(parts={"image/png": b"one", "text/plain": b"x"}),
        Result(parts={"text/plain": b"no picture"}),
        Result(parts={"image/jpeg": b"two"}),
    ]
    saved = save_pictures(results, into=str(tmp_path), stem="figure")

    assert names(tmp_path) == ["figure-1.jpg", "figure-1.png", "figure-2.png"]
    assert (tmp_path / "figure-1.png").read_text() == "mine"
    assert [item.size_bytes for item in saved] == [3, 3]
