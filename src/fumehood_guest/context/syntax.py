"""IPython's syntax, turned into Python.

Runs in a context, on each cell. IPython takes every cell to pieces in search of magics, which costs more
than running most cells. A cell that Python can parse holds none of its syntax, so it is left alone; any
other goes the long way. What was parsed to find that out is what is run: once is enough. Of single lines IPython
then looks once more whether they are meant for a magic; that an assignment is none can be told at once.
"""

from __future__ import annotations

import ast
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

# Those of IPython's compiler, as long as no cell has imported from __future__.
_FLAGS: int = CachingCompiler().flags
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
        """Returns what came of parsing this source a moment ago, once: running it may change it."""
        tree, self._tree = self._tree, None
        return tree if source == self._source else None

    @staticmethod
    def _may_be_python(cell: str) -> bool:
        """False for indentation and empty lines to be removed, and for a prompt, as Python an annotation."""
        return bool(cell) and not cell[0].isspace() and not cell.startswith("In [")

    def _transformers(self) -> Tuple[Any, ...]:
        return (*self.cleanup_transforms, *self.line_transforms, *self.token_transformers)


class SingleLines:
    """What IPython's prefilter leaves of an assignment, as long as nobody has changed the prefilter: all of it."""

    # What looks at a line before it is known to be an assignment, and what says so.
    _FIRST = (EmacsChecker, MacroChecker, IPyAutocallChecker, AssignmentChecker)

    def __init__(self, manager: PrefilterManager) -> None:
        checkers = list(manager.checkers)
        kinds = tuple(type(checker) for checker in checkers[: len(self._FIRST)])
        self._manager = manager
        self._checkers = checkers if kinds == self._FIRST else None
        self._normal = manager.handlers.get("normal")

    def leave_alone(self, line: str, names: Mapping[str, Any], manager: PrefilterManager) -> bool:
        """Whether a line is an assignment, and to no name that stands for more than its value."""
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

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Parses code, unless that has just been done in the very same way."""
        tree = self.syntax.take_tree(source) if self.syntax is not None else None

        if tree is not None and symbol == "exec" and self.flags == _FLAGS:
            return tree

        parsed: ast.AST = super().ast_parse(source, filename, symbol)
        return parsed

    def extra_flags(self, flags: int) -> _ExtraFlags:
        """Compiles with these flags as well for a while."""
        return _ExtraFlags(self, flags)


class _ExtraFlags:
    """What IPython makes of a generator, for each statement of a cell; flags that code sets meanwhile stay."""

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
