"""Listings that must stay within a folder: what links lead to outside is neither listed nor described."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fumehood_guest.init import files


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a file, a folder, and links within it and out of it."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "folder").mkdir(parents=True)
    outside.mkdir()
    (home / "folder" / "mine.txt").write_text("mine")
    (outside / "secret.txt").write_text("a secret")
    (home / "within").symlink_to("folder/mine.txt")
    (home / "file").symlink_to(outside / "secret.txt")
    (home / "aside").symlink_to(outside)
    (home / "through").symlink_to("aside/secret.txt")
    return home


def listed(path: Path, beneath: Path | None) -> dict[str, dict[str, Any]]:
    reply, _ = files.list_entries(str(path), 1, beneath=None if beneath is None else str(beneath))
    return {item["name"]: item for item in reply["entries"]}


def test_links_that_lead_out_are_described_by_themselves(home: Path) -> None:
    """By their own text: neither the kind, the size nor the real place of what is there is given."""
    outside = home.parent / "outside"
    seen, control = listed(home, home), listed(home, None)
    texts = {"file": f"{outside}/secret.txt", "aside": str(outside), "through": f"{home}/aside/secret.txt"}

    for name, text in texts.items():
        assert (seen[name]["type"], seen[name]["resolved_target"]) == ("symlink", text)
        assert seen[name]["size_bytes"] == os.lstat(home / name).st_size
        assert control[name]["type"] != "symlink"

    assert control["through"]["resolved_target"] == f"{outside}/secret.txt"
    assert seen["within"] == control["within"]
    assert seen["within"]["resolved_target"] == f"{home}/folder/mine.txt"
    assert seen["folder"] == control["folder"]
    assert seen["folder"]["path"] == f"{home}/folder"


def test_a_folder_is_not_exchanged_after_it_was_checked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code in the sandbox may put a link in its place at that moment."""
    check = files._check_beneath

    def exchange(fd: int, folder: str | None) -> None:
        check(fd, folder)
        (home / "folder").rename(home / "before")
        (home / "folder").symlink_to(home.parent / "outside")

    monkeypatch.setattr(files, "_check_beneath", exchange)
    assert set(listed(home / "folder", home)) == {"mine.txt"}
    monkeypatch.undo()

    # Control: the link leads there, for those who may follow it.
    assert set(listed(home / "folder", None)) == {"secret.txt"}

    for path in (home / "folder", home / "file"):
        with pytest.raises(PermissionError) as refused:
            listed(path, home)

        assert refused.value.errno == errno.EACCES
