"""What is written into a new root: files, copies and links."""

import os
from pathlib import Path

import pytest

from fumehood_jail import mounts
from fumehood_jail.errors import JailError


def test_a_file_takes_the_place_of_a_link(tmp_path):
    """An image may have a link there: what it leads to stays as it is, also where it leads nowhere."""
    target = tmp_path / "target"
    target.write_text("of the image")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hosts").symlink_to(target)
    (tmp_path / "etc" / "group").symlink_to("missing")
    names = [str(tmp_path / "etc" / name) for name in ("hosts", "group", "run")]
    mounts._write_files({names[0]: "ours\n", names[1]: b"ours too", names[2]: "#!"}, names[2:])
    assert [os.path.islink(name) for name in names] == [False] * 3
    assert [Path(name).read_text() for name in names] == ["ours\n", "ours too", "#!"]
    assert [os.access(name, os.X_OK) for name in names] == [False, False, True]
    assert (target.read_text(), sorted(os.listdir(tmp_path / "etc"))) == (
        "of the image",
        ["group", "hosts", "run"],
    )


def test_a_copy_that_is_missing_on_the_host_makes_nothing(tmp_path):
    """Neither a file nor the folder that it would lie in."""
    source = tmp_path / "services"
    source.write_bytes(b"\xff")
    there, missing = str(tmp_path / "root" / "services"), str(tmp_path / "other" / "services")
    found = mounts._read_those_there([(str(source), there), (str(tmp_path / "none"), missing)])
    mounts._write_files(found, ())
    assert Path(there).read_bytes() == b"\xff"
    assert not os.path.exists(os.path.dirname(missing))


def test_guest_code_that_cannot_be_read_is_an_error(tmp_path):
    """A guest that lacks a module of ours is not started."""
    (tmp_path / "there.py").write_text("x = 1")
    there = (str(tmp_path / "there.py"), "/opt/there.py")
    assert mounts._read_code([there]) == {"/opt/there.py": b"x = 1"}

    with pytest.raises(JailError, match=r"gone\.py.*ENOENT"):
        mounts._read_code([there, (str(tmp_path / "gone.py"), "/opt/gone.py")])


def test_links_leave_what_is_there(tmp_path):
    """A name that an image has stays the image's; links of the host's alternatives are read, and files are none."""
    (tmp_path / "taken").write_text("")
    mounts._write_links({str(tmp_path / name): "/usr/bin/mawk" for name in ("taken", "awk", "deep/er")})
    assert mounts._read_links(str(tmp_path)) == {"awk": "/usr/bin/mawk"}
    assert mounts._read_links(str(tmp_path / "none")) == {}
