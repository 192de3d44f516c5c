"""`python -m fumehood_bench`: measures each group of figures in a process of its own and prints one table.

The groups do not disturb one another that way: each has a fresh engine, with or without a pool as it needs,
and the memory it measures is its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from fumehood.cli.parser import Command, OneOf, Option, Options, WrongWordError, start
from fumehood_bench.figure import Figure, Plan, from_json
from fumehood_bench.report import as_json, as_markdown, table

# As a shell reports SIGINT.
EXIT_INTERRUPTED = 130

# Each group is a module with a function `measure(plan)`; with it, how many sandboxes its engine, and its server,
# keep ready.
GROUPS = {
    "stateless": 2,
    "stateless-flood": 4,
    "creation": 0,
    "cell": 0,
    "llm": 0,
    "languages": 0,
    "images": 0,
    "images-pooled": 2,
    "density": 0,
    "streaming": 0,
    "tools": 0,
    "time-travel": 0,
    "forks": 0,
    "flood": 0,
    "printing": 0,
    "neighbours": 0,
    "server": 2,
    "server-carrying": 0,
    "server-flood": 4,
    "server-fusion": 4,
    "server-memory": 0,
    "server-streams": 0,
    "server-watching": 0,
    "mcp": 0,
    "many-live": 0,
    "console": 0,
    "console-live": 0,
}
# Those that are measured by name alone: they take most of a machine, or a browser.
_BY_NAME = frozenset({"many-live", "console", "console-live"})
# Settings of the engine that a group needs.
_SETTINGS = {"many-live": {"FUMEHOOD_MAX_SANDBOXES": "2100"}}

# What must be there to measure: preloaded in zygote and floor, and for some groups a reference or a server.
_LOADED = ("numpy", "pandas", "matplotlib")
_JUPYTER = ("jupyter_client", "ipykernel")
_SERVER = ("fastapi", "uvicorn", "httptools", "sqlalchemy", "obstore")
_NEEDED = {
    "cell": _JUPYTER,
    "mcp": ("mcp", *_JUPYTER),
    "server": (*_SERVER, *_JUPYTER),
    "server-carrying": (*_SERVER, "websockets"),
    "server-flood": _SERVER,
    "server-fusion": _SERVER,
    "server-memory": _SERVER,
    "server-streams": _SERVER,
    "server-watching": _SERVER,
    "console": (*_SERVER, "playwright"),
    "console-live": (*_SERVER, "playwright", "mcp", "e2b_code_interpreter"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit code: 0 when every target was met, 1 when one was missed, 130 when it was interrupted.
    """
    return start(_COMMAND, "fumehood bench", sys.argv[1:] if arguments is None else arguments)


def _run(options: Options) -> int:
    if options.one:
        return _measure_here(options.one, Plan(quick=options.quick))

    if options.json and options.markdown:
        raise WrongWordError("--json and --markdown do not go together")

    if missing := _missing(_LOADED):
        raise WrongWordError(f"not installed: {', '.join(missing)}; pip install 'fumehood[data]'")

    form = as_json if options.json else as_markdown if options.markdown else table
    figures: list[Figure] = []

    try:
        _measure(
            options.only or [group for group in GROUPS if group not in _BY_NAME], figures, quick=options.quick
        )
    except KeyboardInterrupt:
        return _told_so_far(figures, form)

    print(form(figures))
    return 0 if all(figure.passed for figure in figures) else 1


def _missing(packages: Iterable[str]) -> list[str]:
    return [package for package in packages if importlib.util.find_spec(package) is None]


def _told_so_far(figures: Sequence[Figure], form: Callable[[Sequence[Figure]], str]) -> int:
    """Print what there is of a run that was interrupted."""
    if figures:
        print(form(figures))

    print(
        f"interrupted: {len(figures)} figures were measured"
        if figures
        else "interrupted: nothing was measured",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


def _measure(groups: Iterable[str], figures: list[Figure], *, quick: bool) -> None:
    """Measure groups one after the other; `figures` has what there is at each moment."""
    for group in groups:
        if missing := _missing(_NEEDED.get(group, ())):
            print(f"left out: {group}, since there is no {' and no '.join(missing)}", file=sys.stderr)
            continue

        print(f"measuring: {group} ...", file=sys.stderr, flush=True)
        _measure_apart(group, figures, quick=quick)


def _measure_here(group: str, plan: Plan) -> int:
    """Measure one group in this process; one figure a line of JSON on standard output."""
    try:
        # Whoever has started us has blocked it until we would hear of it here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        module = importlib.import_module(f"fumehood_bench.{group.replace('-', '_')}")

        for figure in module.measure(plan):
            print(json.dumps(figure.to_json()), flush=True)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED

    return 0


def _measure_apart(group: str, figures: list[Figure], *, quick: bool) -> None:
    command = [sys.executable, "-m", "fumehood_bench", "--one", group, *(["--quick"] if quick else [])]
    envs = os.environ | {"FUMEHOOD_POOL_SIZE": str(GROUPS[group])} | _SETTINGS.get(group, {})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # In a process group of its own: of Ctrl-C it, and all that it starts, hears from us alone.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=envs, process_group=0
    ) as measuring:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

            for line in measuring.stdout or ():
                figures.append(from_json(json.loads(line)))
        except KeyboardInterrupt:
            _end(measuring)
            raise

    if measuring.returncode != 0:
        raise SystemExit(f"measuring {group!r} failed; what it said stands above")


def _end(measuring: subprocess.Popen[str]) -> None:
    """Let it tidy up, unless that is not wanted either."""
    try:
        measuring.send_signal(signal.SIGINT)
        measuring.wait()
    except KeyboardInterrupt:
        os.killpg(measuring.pid, signal.SIGKILL)
        raise


_COMMAND = Command(
    "bench",
    _run,
    brief="Measure fumehood beside its references, in one run.",
    params=[
        Option(["--quick"], is_flag=True, help="a tenth of the repetitions: too few to judge by"),
        Option(
            ["--only"],
            multiple=True,
            type=OneOf(list(GROUPS)),
            metavar="GROUP",
            help="measure this group; may be repeated",
        ),
        Option(["--json"], is_flag=True, help="print JSON"),
        Option(["--markdown"], is_flag=True, help="print the table as Markdown"),
        Option(["--one"], hidden=True, type=OneOf(list(GROUPS))),
    ],
)

if __name__ == "__main__":
    sys.exit(main())
