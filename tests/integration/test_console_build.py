"""The hook that builds the console: no wheel without a page, and no npm where none is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The module of the hook, which no package has."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(hook: ModuleType, root: Path, version: str = "standard") -> None:
    config: Any = None
    hook.CustomBuildHook(str(root), {}, config, config, str(root), "wheel").initialize(version, {})


def _document(root: Path) -> Path:
    document = root / "src" / "fumehood" / "console" / "dist" / "index.html"
    document.parent.mkdir(parents=True)
    document.write_text("<!doctype html>")
    return document


def _sources(root: Path) -> None:
    (root / "web" / "src").mkdir(parents=True)

    for name in (
        "index.html",
        "share.html",
        "package.json",
        "package-lock.json",
        "vite.config.ts",
        "tsconfig.json",
        ".npmrc",
        "src/main.tsx",
    ):
        (root / "web" / name).write_text(name)


def test_a_wheel_without_the_page_fails(hook: ModuleType, tmp_path: Path) -> None:
    """A source archive without it gives no wheel; one with it does, and an editable install needs none."""
    with pytest.raises(RuntimeError, match=r"index\.html is missing"):
        _run(hook, tmp_path)

    _run(hook, tmp_path, "editable")
    _document(tmp_path)
    _run(hook, tmp_path)


def test_a_tree_without_npm_says_what_to_do(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page may be there, and still be older than its sources."""
    _sources(tmp_path)
    _document(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RuntimeError, match="FUMEHOOD_WITHOUT_CONSOLE=1"):
        _run(hook, tmp_path)


def test_the_page_is_built_when_its_sources_change(hook: ModuleType, tmp_path: Path) -> None:
    """By content, whatever the times of files are: a name, a text, a file more."""
    _sources(tmp_path)
    _document(tmp_path)
    note = tmp_path / "web" / "node_modules" / ".built-from"
    note.parent.mkdir()
    note.write_text(hook.sources_digest(tmp_path))
    _run(hook, tmp_path)

    digests = {hook.sources_digest(tmp_path)}
    main = tmp_path / "web" / "src" / "main.tsx"
    main.write_text("other")
    digests.add(hook.sources_digest(tmp_path))
    assert not hook.is_built(tmp_path)
    main.rename(main.with_name("other.tsx"))
    digests.add(hook.sources_digest(tmp_path))
    (main.parent / "more.ts").write_text("")
    digests.add(hook.sources_digest(tmp_path))
    assert len(digests) == 4


def test_the_page_can_be_left_out_on_purpose(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier build left does not slip into the wheel."""
    document = _document(tmp_path)
    monkeypatch.setenv("FUMEHOOD_WITHOUT_CONSOLE", "1")
    _run(hook, tmp_path)
    assert not document.exists()
