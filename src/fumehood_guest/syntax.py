"""IPython's syntax, turned into Python.

Runs in a context, on each cell. IPython takes every cell to pieces in search of magics, which costs more
than to run most cells. A cell that Python can parse holds none of its syntax, so it is left alone; any
other goes the long way.
"""

from __future__ import annotations

import ast
from typing import Any, Tuple

from IPython.core.inputtransformer2 import TransformerManager

_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Syntax(TransformerManager):  # type: ignore[misc]
    """The transformer of a shell."""

    def __init__(self) -> None:
        super().__init__()
        self._standard = self._transformers()

    def transform_cell(self, cell: str) -> str:
        """Returns the cell as Python."""
        if self._may_be_python(cell) and self._transformers() == self._standard and _is_python(cell):
            return cell if cell.endswith("\n") else f"{cell}\n"

        transformed: str = super().transform_cell(cell)
        return transformed

    @staticmethod
    def _may_be_python(cell: str) -> bool:
        """False for indentation and empty lines to be removed, and for a prompt, as Python an annotation."""
        return bool(cell) and not cell[0].isspace() and not cell.startswith("In [")

    def _transformers(self) -> Tuple[Any, ...]:
        return (*self.cleanup_transforms, *self.line_transforms, *self.token_transformers)


def _is_python(source: str) -> bool:
    try:
        compile(source, "<cell>", "exec", _FLAGS, True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False

    return True
