"""The user's folder of packages: a context takes notice of it when it gets content, and not before."""

from __future__ import annotations

import importlib
import site
import sys
from pathlib import Path

import pytest

from fumehood_guest.context.shell_commands import UserSite


def test_an_empty_folder_costs_no_context_the_caches_of_its_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new sandbox has an empty one: nothing is done about it. With a package in it, it counts at once."""
    folder = tmp_path / "site-packages"
    emptied: list[bool] = []
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(folder))
    monkeypatch.setattr(importlib, "invalidate_caches", lambda: emptied.append(True))
    user_site = UserSite()

    user_site.refresh()
    folder.mkdir()
    user_site.refresh()
    assert not emptied
    assert str(folder) not in sys.path

    beside = tmp_path / "beside"
    beside.mkdir()
    (folder / "package.pth").write_text(f"{beside}\n")
    user_site.refresh()
    assert emptied == [True]
    assert str(folder) in sys.path
    assert str(beside) in sys.path

    user_site.refresh()
    assert emptied == [True]
