"""The output of `fumehood doctor`: missing or weaker layers and a verdict, or a table of all layers.

It joins rows that have one cause or one way out, and examines nothing itself: `doctor` makes the rows, and `--json`
prints them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fumehood.text import visible_line
from fumehood_jail.advice import SET_AS_ROOT

Layer: TypeAlias = dict[str, str]

WARM_RUNS = "warm runs"
_MAX_CHARACTERS = 1000
_NAMESPACE = " namespace"
_SETTINGS = "host settings"
_ALL = "`fumehood doctor --all` shows every layer."
_AGAIN = "Run `fumehood doctor` again after each change."


def is_lacking(layer: Layer) -> bool:
    """Return whether this layer is missing, and sandboxes cannot start without it."""
    return layer["state"] == "missing" and layer["need"] == "required"


def short_report(layers: Sequence[Layer]) -> str:
    """Return the layers that are missing or weaker, each with its reason and way out, and a verdict of one line."""
    # Processes that keep sandboxes ready come and go: that there is none is no fault.
    rows = [row for row in _joined(layers) if row["state"] != "there" and row["name"] != WARM_RUNS]
    settings = [row for row in rows if _is_setting(row)]
    others = [row for row in rows if not _is_setting(row)]
    table = [*others, _joined_settings(settings)] if settings else others

    if any(map(is_lacking, layers)):
        then = _AGAIN
    else:
        then = "What stands above would make them stronger or faster." if table else "Nothing is missing."

    return "\n".join([*_table(table), *([""] if table else []), f"{_verdict(layers)} {then}", _ALL])


def full_report(layers: Sequence[Layer]) -> str:
    """Return every layer with its reason, the way to get those that are not there, and a verdict."""
    again = f" {_AGAIN}" if any(map(is_lacking, layers)) else ""
    return "\n".join([*_table(_joined(layers)), "", f"{_verdict(layers)}{again}"])


def _joined(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the rows to print: present namespaces share a row, and layers missing for one cause share its row."""
    there = [layer for layer in layers if layer["state"] == "there" and layer["name"].endswith(_NAMESPACE)]
    rows: list[Layer] = []

    for layer in layers:
        follow = [other["name"] for other in layers if other["cause"] == layer["name"]]

        if follow:
            rows.append({**layer, "why": f"{layer['why']}; and so: {', '.join(follow)}"})
        elif layer in there and len(there) > 1:
            rows += [_joined_namespaces(there)] if layer is there[0] else []
        elif not layer["cause"]:
            rows.append(layer)

    return rows


def _joined_namespaces(there: Sequence[Layer]) -> Layer:
    kinds = ", ".join(layer["name"].removesuffix(_NAMESPACE) for layer in there)
    return {**there[0], "name": "namespaces", "why": f"{kinds}: a child has lived in a new one of each"}


def _is_setting(layer: Layer) -> bool:
    """Returns whether the row is a setting of the host's kernel that makes an escape harder."""
    return layer["need"] == "advice" and layer["how_to_get_it"].startswith(SET_AS_ROOT)


def _joined_settings(rows: Sequence[Layer]) -> Layer:
    values = (row["how_to_get_it"].removeprefix(SET_AS_ROOT).rstrip(".") for row in rows)
    return {
        **rows[0],
        "name": _SETTINGS,
        "state": "weaker",
        "why": ", ".join(row["why"] for row in rows),
        "how_to_get_it": f"{SET_AS_ROOT}{' '.join(values)}",
    }


def _table(rows: Sequence[Layer]) -> Iterator[str]:
    columns = ("name", "state", "need")
    widths = [max((len(row[column]) for row in rows), default=0) for column in columns]
    indent = "  ".join(" " * width for width in widths)

    for row in rows:
        cells = [row[column].ljust(width) for column, width in zip(columns, widths, strict=True)]
        yield "  ".join([*cells, visible_line(row["why"], max_characters=_MAX_CHARACTERS)]).rstrip()

        if row["state"] != "there" and row["how_to_get_it"]:
            yield f"{indent}  -> {visible_line(row['how_to_get_it'], max_characters=_MAX_CHARACTERS)}"


def _verdict(layers: Sequence[Layer]) -> str:
    lacking = [layer for layer in layers if is_lacking(layer)]

    if not lacking:
        first = next((layer["why"] for layer in layers if layer["name"] == "first sandbox"), "")
        return f"Sandboxes can start here ({visible_line(first, max_characters=_MAX_CHARACTERS)})."

    if any(layer["name"] == "first sandbox" for layer in lacking):
        return "No sandbox starts here, though no layer is missing."

    names = ", ".join(layer["name"] for layer in lacking if not layer["cause"])
    is_weaker = any(layer["name"] == "isolation level" and layer["state"] == "degraded" for layer in layers)
    way = " Weaker ones can, for those who name that level: --isolation landlock-only." if is_weaker else ""
    return f"No sandbox can start here without: {names}.{way}"
