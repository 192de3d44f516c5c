"""Every module has a charter, every public name a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MAX_CHARTER_LINES = 16
# The error tree is drawn in its charter.
DRAWN = "fumehood.errors"

SECTIONS = {"Args:", "Attributes:", "Raises:", "Returns:", "Yields:"}

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
    """What it is for and what it must never do; the charter of its package says which process runs it."""
    odd: list[str] = []

    for module in modules:
        charter = ast.get_docstring(module.tree) or ""
        lines = len(charter.splitlines())

        if not charter or (lines > MAX_CHARTER_LINES and module.name != DRAWN):
            odd.append(f"{module.name}: {lines} lines")

    assert odd == []


def documented_methods(modules) -> dict[str, set[str]]:
    """Class -> the names that it documents or inherits the documentation of."""
    classes = {
        node.name: node for module in modules for node in module.nodes if isinstance(node, ast.ClassDef)
    }

    def names(node: ast.ClassDef) -> set[str]:
        own = {item.name for item in node.body if isinstance(item, _DEFINITIONS) and ast.get_docstring(item)}
        bases = [getattr(base, "value", base) for base in node.bases]
        known = [classes[base.id] for base in bases if isinstance(base, ast.Name) and base.id in classes]
        return own.union(*(names(base) for base in known))

    return {name: names(node) for name, node in classes.items()}


def test_every_public_name_has_a_sentence(modules):
    """The first line of a docstring is a sentence that ends like one; an override may leave it to its base."""
    lacking: list[str] = []
    documented = documented_methods(modules)

    for module in modules:
        for name, node in public(module.tree):
            owner, _, method = name.rpartition(".")
            is_inherited = ast.get_docstring(node) is None and method in documented.get(owner, ())

            if is_overload(node) or is_inherited:
                continue

            first = (ast.get_docstring(node) or "").partition("\n")[0]

            if not first.endswith((".", "?", ":")):
                lacking.append(f"{module.name}:{name}")

    assert lacking == []


def continuation_indents(docstring: str) -> list[str]:
    """Lines indented deeper than the line of text that they continue: shown as a code block.

    Sections such as `Args:`, items of lists, and tables and code after a blank line have lines of their own indent.
    """
    above, *lines = docstring.splitlines()
    odd: list[str] = []

    for line in lines:
        opens_block = above.startswith((" ", "-")) or above in SECTIONS or not above

        if line.startswith(" ") and not opens_block:
            odd.append(line.strip())

        above = line

    return odd


def test_no_line_is_indented_as_code_in_mid_sentence(modules):
    """`help()`, the OpenAPI description and Sphinx show a paragraph as one, not as text and a block of code."""
    odd = [
        f"{module.name}:{getattr(node, 'name', 'charter')}: {line}"
        for module in modules
        for node in module.nodes
        if isinstance(node, (*_DEFINITIONS, ast.Module))
        for line in continuation_indents(ast.get_docstring(node) or " ")
    ]

    assert odd == []


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
