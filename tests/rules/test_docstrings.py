"""Every module has a charter, every public name a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MIN_CHARTER_LINES = 3
MAX_CHARTER_LINES = 16
# The error tree is drawn in its charter.
DRAWN = "fumehood.errors"

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def public(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, _DEFINITIONS) or node.name.startswith("_"):
            continue

        yield f"{prefix}{node.name}", node

        if isinstance(node, ast.ClassDef):
            yield from public(node, f"{node.name}.")


def is_overload(node: ast.AST) -> bool:
    return any(getattr(item, "id", "") == "overload" for item in getattr(node, "decorator_list", ()))


def test_every_module_opens_with_a_charter(modules):
    """What it is for, where it runs, what it must never do: in a few lines, not in none."""
    odd: list[str] = []

    for module in modules:
        charter = ast.get_docstring(module.tree) or ""
        lines = len(charter.splitlines())
        is_package = module.path.name in ("__init__.py", "__main__.py")

        is_short = not charter or (lines < MIN_CHARTER_LINES and not is_package)

        if is_short or (lines > MAX_CHARTER_LINES and module.name != DRAWN):
            odd.append(f"{module.name}: {lines} lines")

    assert odd == []


def test_every_public_name_has_a_sentence(modules):
    """The first line of a docstring is a sentence that ends like one."""
    lacking: list[str] = []

    for module in modules:
        for name, node in public(module.tree):
            if is_overload(node):
                continue

            first = (ast.get_docstring(node) or "").partition("\n")[0]

            if not first.endswith((".", "?", ":")):
                lacking.append(f"{module.name}:{name}")

    assert lacking == []


def test_the_error_tree_is_the_one_that_is_drawn(modules):
    """The drawing at the head of errors.py names each class under its base."""
    tree = next(module.tree for module in modules if module.name == DRAWN)
    bases = {
        node.name: node.bases[0].id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and isinstance(node.bases[0], ast.Name)
    }
    drawn: dict[str, str] = {}
    above: list[str] = []

    for line in (ast.get_docstring(tree) or "").splitlines():
        name = line.strip(" │├└─").partition(" ")[0]

        if name not in bases:
            continue

        level = (line.index(name) - 4) // 4
        above[level:] = [name]
        drawn[name] = above[level - 1] if level else "Exception"

    assert drawn == bases
