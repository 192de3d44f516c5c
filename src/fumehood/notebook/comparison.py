"""Compares two executions of the same code: their output, results and errors.

Pure functions. Times, usage and ids are no outputs, and addresses of objects (`0x7f...`) say nothing about the result
of a program, so neither is compared. Everything comes from a guest: it is compared as bytes and text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fumehood.text import visible_line
from fumehood.values.execution import Execution, RecordedCell
from fumehood.values.results import Result

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
# How much of the two sides is shown, from their first difference.
_SHOWN_CHARACTERS = 200
_BEFORE_CHARACTERS = 20
_IMAGES = ("image/png", "image/jpeg", "application/pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two executions.

    Attributes:
        what: The part that differs: stdout, stderr, error, or a format of a result, such as `result 1 text/plain`.
        expected: The text of the record, from shortly before the difference; None: nothing.
        actual: The text of this run; None: nothing.
    """

    what: str
    expected: str | None
    actual: str | None

    def __str__(self) -> str:
        return f"{self.what}: expected {_quoted(self.expected)}, got {_quoted(self.actual)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    """A cell of a record, compared with this run.

    Attributes:
        number: The number of the cell, from 1.
        code: Its code.
        differences: The differences; empty when there are none, or nothing can be compared.
        is_known: Whether the record still has its outputs; without them there is nothing to compare with.
        is_skipped: Whether it was not run.
        skip_reason: Why: undone, interrupted, or ended where it ran when its sandbox ended; empty when it was run. An
            undone cell counts as the same; the others count as unknown.
    """

    number: int
    code: str
    differences: tuple[Difference, ...] = ()
    is_known: bool = True
    is_skipped: bool = False
    skip_reason: Literal["", "undone", "interrupted", "ended"] = ""

    @property
    def is_same(self) -> bool:
        """True when it is known to be equal."""
        return self.is_known and not self.differences


def compare_cell(number: int, cell: RecordedCell, actual: Execution) -> CellComparison:
    """Compare a cell of a record with this run."""
    differences = () if cell.outputs_dropped else tuple(_differences(cell.execution, actual))
    return CellComparison(
        number=number, code=cell.code, differences=differences, is_known=not cell.outputs_dropped
    )


def _differences(expected: Execution, actual: Execution) -> Iterator[Difference]:
    yield from _texts("stdout", "".join(expected.logs.stdout), "".join(actual.logs.stdout))
    yield from _texts("stderr", "".join(expected.logs.stderr), "".join(actual.logs.stderr))

    for number in range(max(len(expected.results), len(actual.results))):
        yield from _results(number + 1, _at(expected.results, number), _at(actual.results, number))

    yield from _texts("error", _error(expected), _error(actual))


def _results(number: int, expected: Result | None, actual: Result | None) -> Iterator[Difference]:
    what = f"result {number}"

    if expected is None or actual is None:
        yield Difference(what=what, expected=_summary(expected), actual=_summary(actual))
        return

    for mime in dict.fromkeys([*expected.parts, *actual.parts]):
        ours, theirs = expected.parts.get(mime), actual.parts.get(mime)
        name = f"{what} {visible_line(mime, max_characters=100)}"

        if ours is None or theirs is None or mime in _IMAGES:
            if ours != theirs:
                yield Difference(what=name, expected=_size(ours), actual=_size(theirs))
        else:
            yield from _texts(name, ours.decode("utf-8", "replace"), theirs.decode("utf-8", "replace"))


def _texts(what: str, expected: str, actual: str) -> Iterator[Difference]:
    ours, theirs = _ADDRESS.sub("0x…", expected), _ADDRESS.sub("0x…", actual)

    if ours == theirs:
        return

    shorter = min(len(ours), len(theirs))
    place = next((index for index in range(shorter) if ours[index] != theirs[index]), shorter)
    start = max(0, place - _BEFORE_CHARACTERS)
    yield Difference(what=what, expected=_excerpt(ours, start), actual=_excerpt(theirs, start))


def _excerpt(text: str, start: int) -> str | None:
    return text[start : start + _SHOWN_CHARACTERS] if text else None


def _error(execution: Execution) -> str:
    error = execution.error
    return "" if error is None else f"{error.kind} {error.name}: {error.value}"


def _summary(result: Result | None) -> str | None:
    return None if result is None else ", ".join(result.parts)[:_SHOWN_CHARACTERS]


def _size(part: bytes | None) -> str | None:
    return None if part is None else f"{len(part)} bytes"


def _at(results: tuple[Result, ...], number: int) -> Result | None:
    return results[number] if number < len(results) else None


def _quoted(text: str | None) -> str:
    return "nothing" if text is None else f"'{visible_line(text, max_characters=_SHOWN_CHARACTERS)}'"
