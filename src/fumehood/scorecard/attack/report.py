"""Runs probes by name and returns their results as a line of JSON.

A part of the program `attack`, which runs in every kind of process of a sandbox and, as a control, without a sandbox. A
probe that cannot run is reported as such: it has neither failed nor succeeded.
"""

from __future__ import annotations

import json
from typing import Any

from . import amounts, kernel, surroundings, workloads

_PARTS = (kernel, surroundings, amounts, workloads)


def report(name: str, *arguments: Any) -> str:
    """Run one probe, or one of the ways to run many, and return the result."""
    return json.dumps(_WAYS[name](*arguments) if name in _WAYS else _probe(name)(*arguments))


def several(probes: list[list[Any]]) -> list[Any]:
    """Run several probes, each given as a name with arguments, and return their results."""
    return [_probe(name)(*arguments) for name, *arguments in probes]


def batch(path: str) -> dict[str, Any]:
    """Run the probes of a file: by key, a name and arguments; one that cannot run has the reason under "broken"."""
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)

    found: dict[str, Any] = {}

    for key, (name, arguments) in plan.items():
        try:
            found[key] = {"found": _probe(name)(*arguments)}
        except Exception as error:  # noqa: BLE001 - any error that keeps a probe from running is reported
            found[key] = {"broken": f"{type(error).__name__}: {error}"[:300]}

    return found


def _probe(name: str) -> Any:
    for part in _PARTS:
        if hasattr(part, name):
            return getattr(part, name)

    raise LookupError(f"there is no probe {name!r}")


_WAYS: dict[str, Any] = {"batch": batch, "several": several}
