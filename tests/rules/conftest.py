"""What the rules read: every module of ours, parsed once."""

from __future__ import annotations

import ast
import pathlib
from dataclasses import dataclass
from functools import cached_property

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("fumehood", "fumehood_guest", "fumehood_jail", "fumehood_wire")


# They only compute: all sources take seconds of a processor, and minutes of one that many share.
_MOST_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what reads all sources the time it takes on a busy machine."""
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(_MOST_SECONDS))


@dataclass(frozen=True)
class Module:
    """One of our modules."""

    name: str
    path: pathlib.Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, in the order of `ast.walk`; a walk takes longer than all that a rule looks at."""
        return list(ast.walk(self.tree))

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def imports(self) -> list[str]:
        """Every module that is imported anywhere in this one, by its full name."""
        return _imports(self.nodes)

    def of_ours(self, known: set[str]) -> set[str]:
        """The modules of ours among the imports; a name imported from a module counts as the module."""
        names = {name for name in self.imports if name.partition(".")[0] in PACKAGES}
        return {name if name in known else name.rpartition(".")[0] for name in names} - {self.name}


def _imports(nodes: list[ast.AST]) -> list[str]:
    found: list[str] = []

    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]

    return found


def all_modules() -> list[Module]:
    modules: list[Module] = []

    for package in PACKAGES:
        for path in sorted((ROOT / "src" / package).rglob("*.py")):
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules.append(Module(name, path))

    return modules


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    return all_modules()


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT
