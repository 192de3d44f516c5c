"""The table of all figures, and the same as Markdown and as JSON. Text only: nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fumehood_bench.figure import Figure

_HEADINGS = ("figure", "ours", "reference", "ours/ref", "target", "", "floor", "x floor", "n")


def table(figures: Sequence[Figure]) -> str:
    """One line a figure, then what the numbers were compared with."""
    rows = [_HEADINGS, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    held = [figure for figure in figures if figure.target is not None]
    passed = sum(figure.passed for figure in held)
    return "\n".join([*lines, "", *_legend(figures), f"{passed} of {len(held)} targets met"])


def as_markdown(figures: Sequence[Figure]) -> str:
    """The table as benchmarks/README.md shows it."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *(_row(figure) for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_json(figures: Sequence[Figure]) -> str:
    """All figures with everything that is known about them."""
    return json.dumps([figure.to_json() for figure in figures], indent=2)


def _row(figure: Figure) -> tuple[str, ...]:
    absolute = figure.reference is None
    return (
        figure.name,
        _value(figure.ours, figure.unit),
        "" if figure.reference is None else _value(figure.reference, figure.unit),
        "" if absolute else f"{figure.achieved:.2f}",
        _target(figure),
        _verdict(figure),
        "" if figure.floor is None else _value(figure.floor, figure.unit),
        "" if figure.above_floor is None else f"{figure.above_floor:.1f}",
        str(figure.samples),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""

    sign = ">=" if figure.at_least else "<="
    unit = figure.unit if figure.reference is None else "x"
    return f"{sign} {figure.target:g} {unit}".rstrip()


def _verdict(figure: Figure) -> str:
    if figure.target is None:
        return "told"

    return "pass" if figure.passed else "MISS"


def _value(value: float, unit: str) -> str:
    if unit == "":
        # Counted.
        return f"{value:.0f}"

    return f"{value:.3f} {unit}" if value < 1 else f"{value:.1f} {unit}"


def _legend(figures: Sequence[Figure]) -> list[str]:
    lines = []

    for figure in figures:
        parts = [
            f"reference: {figure.reference_name}" if figure.reference_name else "",
            f"floor: {figure.floor_name}" if figure.floor_name else "",
            figure.note,
        ]
        said = "; ".join(part for part in parts if part)

        if said:
            lines.append(f"{figure.name}: {said}")

    return [*lines, ""] if lines else []
