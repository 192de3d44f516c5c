"""`python -m fumehood_bench`: measures each group of figures in a process of its own and prints one table.

The groups do not disturb one another that way: each has a fresh engine, with or without a pool as it needs,
and the memory it measures is its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from fumehood_bench.figure import Figure, Plan, from_json
from fumehood_bench.report import as_json, as_markdown, table

# Each group is a module with a function `measure(plan)`; with it, how many sandboxes its engine, and its server,
# keep ready.
GROUPS = {
    "stateless": 2,
    "creation": 0,
    "cell": 0,
    "llm": 0,
    "density": 0,
    "streaming": 0,
    "tools": 0,
    "time-travel": 0,
    "forks": 0,
    "flood": 0,
    "neighbours": 0,
    "server": 2,
    "server-flood": 4,
    "server-fusion": 4,
    "server-memory": 0,
    "server-streams": 0,
    "mcp": 0,
}

# What must be there to measure: preloaded in zygote and floor, and for some groups a reference or a server.
_LOADED = ("numpy", "pandas", "matplotlib")
_JUPYTER = ("jupyter_client", "ipykernel")
_SERVER = ("fastapi", "uvicorn", "httptools", "sqlalchemy", "obstore")
_NEEDED = {
    "cell": _JUPYTER,
    "mcp": ("mcp", *_JUPYTER),
    "server": (*_SERVER, *_JUPYTER),
    "server-flood": _SERVER,
    "server-fusion": _SERVER,
    "server-memory": _SERVER,
    "server-streams": _SERVER,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code is 0 when every target was met, 1 when one was missed."""
    parser = argparse.ArgumentParser(
        prog="fumehood bench", description="Measure fumehood beside its references, in one run."
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the repetitions: too few to judge by"
    )
    parser.add_argument("--only", action="append", choices=GROUPS, help="measure this group; may be repeated")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_const", const=as_json, dest="form", help="print JSON")
    form.add_argument(
        "--markdown", action="store_const", const=as_markdown, dest="form", help="print the table as Markdown"
    )
    parser.add_argument("--one", choices=GROUPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    if options.one:
        _measure_here(options.one, Plan(quick=options.quick))
        return 0

    if _missing(_LOADED):
        parser.error(f"not installed: {', '.join(_missing(_LOADED))}; pip install 'fumehood[data]'")

    figures: list[Figure] = []

    for group in options.only or GROUPS:
        if missing := _missing(_NEEDED.get(group, ())):
            print(f"left out: {group}, since there is no {' and no '.join(missing)}", file=sys.stderr)
            continue

        print(f"measuring: {group} ...", file=sys.stderr, flush=True)
        figures.extend(_measure_apart(group, quick=options.quick))

    print((options.form or table)(figures))
    return 0 if all(figure.passed for figure in figures) else 1


def _missing(packages: Iterable[str]) -> list[str]:
    return [package for package in packages if importlib.util.find_spec(package) is None]


def _measure_here(group: str, plan: Plan) -> None:
    """Measure one group in this process; one figure a line of JSON on standard output."""
    module = importlib.import_module(f"fumehood_bench.{group.replace('-', '_')}")

    for figure in module.measure(plan):
        print(json.dumps(figure.to_json()), flush=True)


def _measure_apart(group: str, *, quick: bool) -> list[Figure]:
    command = [sys.executable, "-m", "fumehood_bench", "--one", group, *(["--quick"] if quick else [])]
    envs = os.environ | {"FUMEHOOD_POOL_SIZE": str(GROUPS[group])}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=envs, check=False)

    if done.returncode != 0:
        raise SystemExit(f"measuring {group!r} failed; what it said stands above")

    return [from_json(json.loads(line)) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
