"""What binds names in a piece of hostile code: imports, assignments, loops, defaults.

Runs in the host process; nothing is imported and nothing is run. Order and scope are not followed: a name may stand for
whatever it is bound to anywhere, which is what advice needs. How much is remembered for each name is bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

MAX_IMPORTS = 4
MAX_BOUND = 8


class Bindings:
    """What each name in one piece of code is bound to.

    Attributes:
        imported: Name -> dotted names of what it was imported from.
        stars: Modules of which everything was imported.
        bound: Name -> expressions.
        added: Name -> expressions that were added to it.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.imported: dict[str, list[str]] = {}
        self.stars: list[str] = []
        self.bound: dict[str, list[ast.expr]] = {}
        self.added: dict[str, list[ast.expr]] = {}

        for node in nodes:
            work = _WORK.get(type(node))

            if work is not None:
                work(self, node)

    def _import_modules(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self._import(alias.asname or whole, whole)

    def _import_names(self, node: ast.ImportFrom) -> None:
        if node.module is None or node.level:
            return

        for alias in node.names:
            if alias.name == "*":
                self.stars.append(node.module)
            else:
                self._import(alias.asname or alias.name, f"{node.module}.{alias.name}")

    def _import(self, name: str, whole: str) -> None:
        kept = self.imported.setdefault(name, [])

        if len(kept) < MAX_IMPORTS:
            kept.append(whole)

    def _assigned(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)

    def _named(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)

    def _add(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            kept = self.added.setdefault(node.target.id, [])

            if len(kept) < MAX_BOUND:
                kept.append(node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            kept = self.bound.setdefault(target.id, [])

            if len(kept) < MAX_BOUND:
                kept.append(value)
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)

    def _each(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        if isinstance(node.iter, (ast.Tuple, ast.List, ast.Set)):
            for item in node.iter.elts[:MAX_BOUND]:
                self._assign(node.target, item)

    def _defaults(self, node: ast.arguments) -> None:
        positional = [*node.posonlyargs, *node.args]
        given = zip(reversed(positional), reversed(node.defaults), strict=False)

        for argument, default in (*given, *zip(node.kwonlyargs, node.kw_defaults, strict=False)):
            if default is not None:
                self._assign(ast.Name(argument.arg), default)


_WORK: dict[type[ast.AST], Callable[..., None]] = {
    ast.Import: Bindings._import_modules,
    ast.ImportFrom: Bindings._import_names,
    ast.Assign: Bindings._assigned,
    ast.AnnAssign: Bindings._named,
    ast.NamedExpr: Bindings._named,
    ast.AugAssign: Bindings._add,
    ast.For: Bindings._each,
    ast.AsyncFor: Bindings._each,
    ast.comprehension: Bindings._each,
    ast.arguments: Bindings._defaults,
}
