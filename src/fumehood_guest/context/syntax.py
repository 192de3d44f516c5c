"""IPython's syntax, translated into Python.

Runs in a context, on each cell. IPython tokenizes every cell in search of magics, which costs more than running most
cells. A cell that Python can parse contains none of its syntax, so it is left alone; any other is translated by
IPython. The syntax tree of that check is the one that is executed, so that a cell is parsed once. IPython also checks
single lines for magics; for an assignment this is skipped.
"""

from __future__ import annotations

import ast
import codeop
from typing import Any, Mapping, Optional, Tuple

from IPython.core.autocall import IPyAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.macro import Macro
from IPython.core.prefilter import (
    AssignmentChecker,
    EmacsChecker,
    IPyAutocallChecker,
    MacroChecker,
    PrefilterManager,
)
from IPython.core.splitinput import split_user_input

# IPython asks for this since Python 3.11: whatever ends too early is then "incomplete input", also an open bracket.
_INCOMPLETE: int = getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", 0)
# The flags of the compiler, as long as no cell has imported from __future__.
_FLAGS: int = CachingCompiler().flags & ~_INCOMPLETE
_PARSES = _FLAGS | ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Syntax(TransformerManager):  # type: ignore[misc]
    """The transformer of a shell."""

    def __init__(self) -> None:
        super().__init__()
        self._standard = self._transformers()
        self._source = ""
        self._tree: Optional[ast.AST] = None

    def transform_cell(self, cell: str) -> str:
        """Returns the cell as Python."""
        if self._may_be_python(cell) and self._transformers() == self._standard:
            source = cell if cell.endswith("\n") else f"{cell}\n"
            tree = _parsed(source)

            if tree is not None:
                self._source, self._tree = source, tree
                return source

        transformed: str = super().transform_cell(cell)
        return transformed

    def take_tree(self, source: str) -> Optional[ast.AST]:
        """Returns the tree of the source parsed last, once: execution may change it."""
        tree, self._tree = self._tree, None
        return tree if source == self._source else None

    @staticmethod
    def _may_be_python(cell: str) -> bool:
        """Returns False for leading white space to remove, and for a prompt, which parses as an annotation."""
        return bool(cell) and not cell[0].isspace() and not cell.startswith("In [")

    def _transformers(self) -> Tuple[Any, ...]:
        return (*self.cleanup_transforms, *self.line_transforms, *self.token_transformers)


class SingleLines:
    """Decides whether IPython's prefilter would leave a line unchanged because it is an assignment."""

    # The checkers that run up to the one for assignments.
    _FIRST = (EmacsChecker, MacroChecker, IPyAutocallChecker, AssignmentChecker)

    def __init__(self, manager: PrefilterManager) -> None:
        checkers = list(manager.checkers)
        kinds = tuple(type(checker) for checker in checkers[: len(self._FIRST)])
        self._manager = manager
        self._checkers = checkers if kinds == self._FIRST else None
        self._normal = manager.handlers.get("normal")

    def leave_alone(self, line: str, names: Mapping[str, Any], manager: PrefilterManager) -> bool:
        """Whether a line is an assignment to a name without special meaning."""
        checkers = self._checkers
        _, _, target, rest = split_user_input(line)

        if rest.lstrip()[:1] not in ("=", ",") or checkers is None:
            return False

        if manager is not self._manager or manager.checkers != checkers:
            return False

        if manager.transformers or manager.handlers.get("normal") is not self._normal:
            return False

        if checkers[0].enabled or not checkers[3].enabled:
            return False

        return not isinstance(names.get(target), (Macro, IPyAutocall))


class Compiler(CachingCompiler):  # type: ignore[misc]
    """The compiler of a shell."""

    syntax: Optional[Syntax] = None
    # What the code of the next cell is called, if it is not to be called by its number.
    next_name = ""

    def __init__(self) -> None:
        super().__init__()
        self.flags &= ~_INCOMPLETE

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Returns the file name of a cell's code."""
        name, self.next_name = self.next_name, ""
        return name or str(super().get_code_name(raw_code, transformed_code, number))

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Parses code, or returns the tree that was just made with the same settings."""
        tree = self.syntax.take_tree(source) if self.syntax is not None else None

        if tree is not None and symbol == "exec" and self.flags == _FLAGS:
            return tree

        parsed: ast.AST = super().ast_parse(source, filename, symbol)
        return parsed

    def extra_flags(self, flags: int) -> _ExtraFlags:
        """Returns a context manager that compiles with these flags in addition."""
        return _ExtraFlags(self, flags)


class _ExtraFlags:
    """Adds compiler flags during a block; flags that the code itself sets meanwhile are kept."""

    __slots__ = ("_added", "_compiler", "_wanted")

    def __init__(self, compiler: Compiler, wanted: int) -> None:
        self._compiler = compiler
        self._wanted = wanted
        self._added = 0

    def __enter__(self) -> None:
        compiler = self._compiler
        self._added = ~compiler.flags & self._wanted
        compiler.flags |= self._wanted

    def __exit__(self, *_error: object) -> None:
        self._compiler.flags &= ~self._added


def _parsed(source: str) -> Optional[ast.AST]:
    try:
        tree: ast.AST = compile(source, "<cell>", "exec", _PARSES, True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return None

    return tree
