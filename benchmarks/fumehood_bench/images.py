"""A sandbox of an image with a CPython of its own, and its first cell, beside those of the default template.

The image is made here, of the oldest Python of this machine without its bytecode, as Docker's images of Python are.
Such a template has an interpreter for each sandbox, which the pool starts ahead; without one ready, the start of a
Python is to be waited for, and where the owner has sandboxes share one, nothing is. The groups `images` and
`images-pooled` differ in the pool of the engine that they run with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood import Network, Sandbox, build_template
from fumehood.templates.pythons import installed_pythons
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.timing import in_turn, milliseconds, percentile

TARGET = 1.5
REFERENCE = "the default template"
OWN, SHARED = "bench-own", "bench-shared"
_ASK = (
    "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))"
)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "test", "site-packages", "idlelib", "tkinter", "config-*")


def measure(plan: Plan) -> Iterator[Figure]:
    """With no sandbox ready: a shared interpreter, and one of its own."""
    with templates():
        samples = in_turn(
            plan.repetitions(100),
            block=10,
            ours=lambda: first_cell(SHARED),
            reference=lambda: first_cell(None),
        )
        yield Figure(
            name="sandbox and first cell, image's CPython, shared, pool empty, p50",
            unit="ms",
            ours=percentile(samples["ours"], 50),
            samples=len(samples["ours"]),
            target=TARGET,
            reference=percentile(samples["reference"], 50),
            reference_name=REFERENCE,
        )
        alone = in_turn(
            plan.repetitions(20), warm_up=2, ours=lambda: first_cell(OWN), reference=lambda: first_cell(None)
        )
        yield Figure(
            name="sandbox and first cell, image's CPython, its own, pool empty, p50",
            unit="ms",
            ours=percentile(alone["ours"], 50),
            samples=len(alone["ours"]),
            target=None,
            reference=percentile(alone["reference"], 50),
            reference_name=REFERENCE,
            note="the start of a Python and its IPython, from bytecode",
        )


@contextmanager
def templates() -> Iterator[None]:
    """Templates of an image with a Python, in a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUMEHOOD_HOME"] = f"{folder}/home"
        python = _copy_python(Path(folder, "files"))
        Path(folder, "Dockerfile").write_text(f"FROM scratch\nCOPY files /\nENV PATH={python.parent}\n")

        for name, own in ((OWN, None), (SHARED, False)):
            build_template(
                name,
                dockerfile=f"{folder}/Dockerfile",
                network=Network(),
                own_interpreter=own,
                on_progress=lambda line: print(line, file=sys.stderr),
            )

        yield


def first_cell(template: str | None) -> float:
    """How long a new sandbox takes until its first cell has a result."""
    made: list[Sandbox] = []

    def run() -> None:
        made.append(Sandbox(template) if template else Sandbox())
        made[0].run_code("6 * 7")

    taken = milliseconds(run)
    made[0].kill()
    return taken


def _copy_python(root: Path) -> Path:
    """Copies the oldest Python of this machine, and the libraries that it loads, to their own paths below a folder."""
    asked = subprocess.run(
        [installed_pythons()[0].path, "-I", "-c", _ASK], check=True, capture_output=True, text=True
    )
    program, stdlib = map(Path, asked.stdout.splitlines())
    shutil.copytree(stdlib, root / stdlib.relative_to("/"), ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
    loaded = subprocess.run(
        ["ldd", program, *stdlib.glob("lib-dynload/*.so")], capture_output=True, text=True, check=False
    ).stdout
    words = {word for line in loaded.splitlines() for word in line.split() if word.startswith("/")}

    for path in {str(program), *(word for word in words if not word.endswith(":"))}:
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)

    python = program.with_name("python3")

    if python != program:
        (root / str(python)[1:]).symlink_to(program.name)

    return python
