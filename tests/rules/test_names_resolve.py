"""What tests, examples and tools import of ours exists: a rename that missed a file fails here, not at collection."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "examples", "benchmarks", "docs")
# Environments and packages of others lie beside the tests that drive them.
OTHERS = {"node_modules", "packages", "model"}
# These need what only a framework's own environment holds.
NEEDS_OTHERS = ("fumehood.frameworks.",)


def _imports(path: Path) -> list[tuple[str, str]]:
    """The module and the name of each import of ours in a file; the name is empty for a plain import."""
    found: list[tuple[str, str]] = []

    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]

    return [pair for pair in found if pair[0].partition(".")[0].startswith(("fumehood", "tests"))]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below a node; an import is one, so that no expression is looked at."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()) if not isinstance(node, ast.expr) else ():
            yield child
            yield from _statements(child)


@functools.cache
def _exists(module: str, name: str) -> bool:
    """Whether the module can be found, and the name is in it."""
    try:
        if importlib.util.find_spec(module) is None:
            return False
    except ModuleNotFoundError:
        return False

    if not name or module.startswith(NEEDS_OTHERS):
        return True

    if module.startswith("tests"):
        return _defines(module, name)

    loaded = importlib.import_module(module)
    return hasattr(loaded, name) or importlib.util.find_spec(f"{module}.{name}") is not None


def _defines(module: str, name: str) -> bool:
    """Whether a module of the tests defines the name, or has a module of it; it is read and not run."""
    path = ROOT / module.replace(".", "/")

    if path.is_dir():
        source = path / "__init__.py"
        return (
            (path / f"{name}.py").exists()
            or (path / name).is_dir()
            or (source.exists() and name in source.read_text())
        )

    return re.search(rf"\b{re.escape(name)}\b", path.with_suffix(".py").read_text()) is not None


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_import_of_ours_resolves(folder, monkeypatch):
    """Every module and name of ours that is imported under the folder exists."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    paths = [
        path
        for path in (ROOT / folder).rglob("*.py")
        if not OTHERS & set(path.relative_to(ROOT).parent.parts)
    ]
    wanted = {(module, name, path) for path in paths for module, name in _imports(path)}
    broken = sorted(
        f"{path.relative_to(ROOT)}: {module} {name}"
        for module, name, path in wanted
        if not _exists(module, name)
    )
    assert wanted
    assert broken == []
