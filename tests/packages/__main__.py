"""`make test-packages`: the packages of the field in real sandboxes, each alone and all together, and the page of it.

Environments lie below `.venv-packages` and are kept, as is what was found: a run with names examines those again, and
writes the page of all, once all have been examined there. torch is examined only when it is named, and only in its CPU
build: the ordinary one takes gigabytes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .cases import CASES, Case

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "packages.md"
PLACE = ROOT / ".venv-packages"
FOUND = PLACE / "found.json"
TOGETHER = "together"
_MATRIX_SECONDS = 1800
_ON_REQUEST = {"torch"}
_OK = "yes"
Rows = dict[str, dict[str, str]]


def main(names: list[str]) -> int:
    """Examines packages, writes the page, and returns the exit code: 1 when something that worked works no more."""
    PLACE.mkdir(exist_ok=True)
    cases = [
        case for case in CASES if case.package in names or (not names and case.package not in _ON_REQUEST)
    ]
    known: dict[str, Rows] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    alone, together = known.setdefault("alone", {}), known.setdefault(TOGETHER, {})
    worse: list[str] = []

    for case in cases:
        _note(f"{case.package} alone")
        worse += _merge(alone, _examine(_environment([case], case.package), [case]))
        FOUND.write_text(json.dumps(known, indent=1))

    _note(f"{len(cases)} together")
    worse += _merge(together, _examine(_environment(cases, TOGETHER), cases))
    FOUND.write_text(json.dumps(known, indent=1))

    # One that is written from a few of them would say of all others that they were not tried.
    if all(case.package in alone for case in CASES if case.package not in _ON_REQUEST):
        PAGE.write_text(page(known))
    else:
        _note("the page is not written: it needs a run of all packages first")

    print(*worse, sep="\n")
    return int(bool(worse))


def _note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def _environment(cases: list[Case], name: str) -> Path:
    """Returns the interpreter of an environment that has fumehood, its data packages, and those of the cases."""
    folder = PLACE / name
    python = folder / "bin" / "python"
    base = PLACE / "base"

    if name != "base" and not (folder / ".installed").exists():
        _environment([], "base")
        shutil.rmtree(folder, ignore_errors=True)
        # Hard links, compiled once.
        subprocess.run(["cp", "-al", str(base), str(folder)], check=True)
        (folder / ".installed").unlink(missing_ok=True)

    if not (folder / ".installed").exists():
        uv = [sys.executable, "-m", "uv"]

        if name == "base":
            subprocess.run(
                [*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)], check=True
            )
            wanted = ["--compile-bytecode", "--editable", f"{ROOT}[data]"]
            subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), *wanted], check=True)

        for case in (case for case in cases if case.package in _ON_REQUEST):
            # pip finds wheels of this machine, where there are some.
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", case.requirement]
            subprocess.run(pip, check=True)

        wanted = [one for case in cases if case.package not in _ON_REQUEST for one in _requirements(case)]

        if wanted:
            subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), *wanted], check=True)

        (folder / ".installed").touch()

    return python


def _requirements(case: Case) -> list[str]:
    return case.requirement.split() or [case.package]


def _examine(python: Path, cases: list[Case]) -> Rows:
    """Runs the matrix in an environment; what it does not come to is told as its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    done = subprocess.run(
        [str(python), "matrix.py", *(case.package for case in cases)],
        cwd=Path(__file__).parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=_MATRIX_SECONDS,
        check=False,
    )
    rows = {row["package"]: row for row in map(json.loads, done.stdout.splitlines())}
    ended = (done.stderr.strip().splitlines() or ["it ended"])[-1]

    for case in cases:
        rows.setdefault(case.package, {"package": case.package, "version": "?", "starts": ended})

    return rows


def _merge(known: Rows, rows: Rows) -> list[str]:
    """Notes what was found, and returns what was better before."""
    worse = [
        f"{name}: {step}: {row.get(step)}"
        for name, row in rows.items()
        for step, was in known.get(name, {}).items()
        if was == _OK and row.get(step) != _OK
    ]
    known.update(rows)
    return worse


_HEAD = """# Packages

Install a package beside fumehood, or into a [template](templates.md), and sandboxes have it. `make test-packages`
installs each of these alone beside `fumehood[data]`, and all of them in one environment, and has real sandboxes use
them; this page is what the last run has found.

| column | what was done |
|---|---|
| works | a sandbox starts, the package does one real thing, and its table, picture or value is a result |
| preloaded | it is on a template's preload list, works there, and costs no sandbox an import |
| goes back | it is used, a checkpoint is made, there is a [rollback](time-travel.md), and the package is used again |
| forks | the sandbox is [forked](time-travel.md), and the package is used in the fork and in the sandbox itself |
| together | what holds alone also holds in one environment that has all of them |

"""

_TAIL = """
## Libraries with threads
A fork has one thread, on Linux as everywhere, and a checkpoint, a rollback and a forked sandbox are forks. What that
means depends on how a library keeps its threads:

- **OpenMP of GCC** (scikit-learn, xgboost, LightGBM, PyTorch): sandboxes end its idle threads before they fork, and it
  starts new ones.
- **Python's `ThreadPoolExecutor`** (dask, `asyncio.to_thread`): a pool whose threads were idle starts new ones.
- **OpenBLAS, pyarrow, duckdb, OpenCV**: see the table; they come to terms with a fork, or start their threads anew.
- **polars** (rayon) and **jax** (XLA): once they have computed something, a fork waits for threads that it does not
  have, until the time limit; the checkpoint names them in `left_behind`. Make the checkpoint before polars computes for
  the first time, or use them in a command (`python job.py`).
- **ray** keeps processes and sockets, which no checkpoint takes along: it works in the sandbox where it was begun.

A module whose import starts a thread is [not preloaded](templates.md#what-preloading-does); everything else works.
"""


def page(known: dict[str, Rows]) -> str:
    """Returns the page of what was found."""
    lines = [
        "| package | version | works | preloaded | goes back | forks | together |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []

    for case in CASES:
        row, also = known["alone"].get(case.package), known[TOGETHER].get(case.package)

        if row is None:
            lines.append(f"| {case.package} | | not tried | | | | |")
            continue

        cells = [_works(row), row.get("preloaded", ""), row.get("goes back", ""), row.get("forks", "")]
        cells.append(_together(row, also))
        shown = []

        for cell in cells:
            if cell in (_OK, ""):
                shown.append(cell or "-")
                continue

            if f"{case.package}: {cell}" not in notes:
                notes.append(f"{case.package}: {cell}")

            shown.append(f"no ({notes.index(f'{case.package}: {cell}') + 1})")

        lines.append(f"| {case.package} | {row['version']} | {' | '.join(shown)} |")

    told = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([_HEAD + lines[0], *lines[1:], "", *told]) + "\n" + _TAIL


def _works(row: dict[str, str]) -> str:
    return next((row.get(step, "") for step in ("starts", "works", "shows") if row.get(step) != _OK), _OK)


def _together(alone: dict[str, str], also: dict[str, str] | None) -> str:
    """Says what does not hold together though it does alone."""
    if also is None:
        return ""

    steps = ("starts", "works", "shows", "preloaded", "goes back", "forks")
    differing = (f"{step}: {also.get(step)}" for step in steps if alone.get(step) == _OK != also.get(step))
    # What comes after it depends on it.
    return next(differing, _OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
