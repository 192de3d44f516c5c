"""Shapes of code that use up a machine: loops that start processes without end, values that fit in no memory.

Pure functions. The limits of the sandbox stop all of these; here they are reported beforehand.
"""

from __future__ import annotations

import ast

from fumehood.advice.names import Names
from fumehood.advice.rules import STARTERS

_MAX_BODY_NODES = 2_000
_HUGE = 10**10


def starts_without_end(node: ast.While | ast.For | ast.AsyncFor, names: Names) -> bool:
    """Whether a loop without an end starts processes or threads."""
    if not _is_endless(node, names):
        return False

    for index, part in enumerate(part for statement in node.body for part in ast.walk(statement)):
        if index > _MAX_BODY_NODES:
            return False

        if isinstance(part, ast.Call) and any(value.name in STARTERS for value in names.dotted(part.func)):
            return True

    return False


def huge_value(node: ast.BinOp) -> str:
    """Return what an operation on constants would make, if no memory holds it; else an empty text."""
    right = node.right.value if isinstance(node.right, ast.Constant) else None
    left = node.left.value if isinstance(node.left, ast.Constant) else None

    if isinstance(node.op, ast.Pow) and type(right) is int and type(left) is int:
        return "a number of more than 10 million bits" if left > 1 and right > 10**7 else ""

    if not isinstance(node.op, ast.Mult):
        return ""

    number = right if type(right) is int else _power(node.right)
    is_row = isinstance(node.left, (ast.List, ast.Tuple)) or isinstance(left, (str, bytes))
    return (
        "a text or list of 10 billion items or more"
        if is_row and number is not None and number >= _HUGE
        else ""
    )


def _is_endless(node: ast.While | ast.For | ast.AsyncFor, names: Names) -> bool:
    if isinstance(node, ast.While):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)

    if not isinstance(node.iter, ast.Call):
        return False

    function = node.iter.func
    is_iter = isinstance(function, ast.Name) and function.id == "iter" and len(node.iter.args) == 2
    known = {value.name for value in names.dotted(function)}
    return is_iter or bool(known & {"itertools.count", "itertools.cycle", "itertools.repeat"})


def _power(node: ast.expr) -> int | None:
    """The value of `10 ** 12`, if it is small enough to be made."""
    match node:
        case ast.BinOp(
            op=ast.Pow(), left=ast.Constant(value=int(base)), right=ast.Constant(value=int(exponent))
        ):
            return int(base**exponent) if 1 < base <= 1000 and 0 <= exponent <= 1000 else None

    return None
