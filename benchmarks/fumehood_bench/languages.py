"""Contexts of JavaScript, R and Java: their first cell, a later cell, and memory; and small programs in Go and C++.

What is not installed has no samples, and such a figure fails. The first cell is measured from the request for a context
to its reply, with the driver's process started in between. Programs are compiled and run in a fresh sandbox of a
template that was made ready for them, and their CPU time is what the kernel has charged to the sandbox.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from fumehood import LanguageUnavailableError, Sandbox, build_template
from fumehood.errors import FumehoodError
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import descendants, memory_bytes
from fumehood_bench.timing import in_turn, milliseconds, percentile

_TARGET_FIRST_JS = 12.0
_TARGET_FIRST_R = 2.0
_TARGET_CELL_JS = 3.0
_TARGET_MEGABYTES = 20.0
_TARGET_CPU_SECONDS = 1.0
_CONTEXTS = 5
_BARE_PYTHON = "python -S -c pass"
_BLOCK = 10
_TEMPLATE = "bench-programs"
_PROGRAMS = {
    "go": ("hello in Go", 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }'),
    "cpp": (
        "hello in C++ with `bits/stdc++.h`",
        '#include <bits/stdc++.h>\nint main() { std::cout << "hello\\n"; }',
    ),
}


def measure(plan: Plan) -> Iterator[Figure]:
    """The figures of each language that is here."""
    with tempfile.TemporaryDirectory() as home:
        # Of this process alone: its engine and its builds look there for templates.
        os.environ["FUMEHOOD_HOME"] = home

        with Sandbox() as sandbox:
            yield from _of_javascript(sandbox, plan)
            yield from _of_r(sandbox, plan)
            yield _of_java(sandbox, plan)

        for language in _PROGRAMS:
            yield _of_program(language, plan)


def _of_javascript(sandbox: Sandbox, plan: Plan) -> Iterator[Figure]:
    first = (
        {"ours": [], "reference": []}
        if _is_missing(sandbox, "javascript")
        else in_turn(
            plan.repetitions(100),
            block=_BLOCK,
            ours=_first_cell(sandbox, "javascript"),
            reference=_bare_python,
        )
    )
    yield Figure(
        name="first cell of a new context of JavaScript, p50",
        unit="ms",
        ours=_p50(first["ours"]),
        samples=len(first["ours"]),
        target=_TARGET_FIRST_JS,
        reference=_p50(first["reference"]),
        reference_name=_BARE_PYTHON,
    )

    if not first["ours"]:
        return

    cells = in_turn(
        plan.repetitions(500),
        block=50,
        ours=lambda: milliseconds(lambda: sandbox.run_code("y = 1", language="javascript")),
        reference=lambda: milliseconds(lambda: sandbox.run_code("y = 1")),
    )
    yield Figure(
        name="cell `y = 1` of JavaScript, p50",
        unit="ms",
        ours=_p50(cells["ours"]),
        samples=len(cells["ours"]),
        target=_TARGET_CELL_JS,
        reference=_p50(cells["reference"]),
        reference_name="a cell of Python",
    )
    yield _memory()


def _memory() -> Figure:
    """The memory of a context and its Node, with five at once in a sandbox of their own."""
    with Sandbox() as sandbox:
        sandbox.run_code("1")
        others = descendants()

        for _ in range(_CONTEXTS):
            context = sandbox.create_code_context(language="javascript")
            sandbox.run_code("const rows = [1, 2, 3]; rows.length", context=context)

        sizes = [memory_bytes(pid) for pid in descendants() - others]

    return Figure(
        name=f"memory (PSS) of a context of JavaScript, {_CONTEXTS} live",
        unit="MB",
        ours=sum(pss for pss, _ in sizes) / _CONTEXTS / 1e6,
        samples=len(sizes),
        target=_TARGET_MEGABYTES,
        note=f"private {sum(private for _, private in sizes) / _CONTEXTS / 1e6:.1f} MB",
    )


def _of_r(sandbox: Sandbox, plan: Plan) -> Iterator[Figure]:
    first = (
        {"ours": [], "reference": []}
        if _is_missing(sandbox, "r")
        else in_turn(
            plan.repetitions(100),
            block=_BLOCK,
            ours=_first_cell(sandbox, "r"),
            reference=_first_cell(sandbox, "python"),
        )
    )
    yield Figure(
        name="first cell of a new context of R, p50",
        unit="ms",
        ours=_p50(first["ours"]),
        samples=len(first["ours"]),
        target=_TARGET_FIRST_R,
        reference=_p50(first["reference"]),
        reference_name="a new context of Python",
    )


def _of_java(sandbox: Sandbox, plan: Plan) -> Figure:
    """Told alone: a JVM takes what it takes, and what there is to save is saved by an archive of its classes."""
    first = (
        {"ours": [], "reference": []}
        if _is_missing(sandbox, "java")
        else in_turn(
            plan.repetitions(20),
            block=5,
            ours=_first_cell(sandbox, "java"),
            reference=lambda: milliseconds(
                lambda: subprocess.run(["java", "-version"], check=True, capture_output=True)
            ),
        )
    )
    return Figure(
        name="first cell of a new context of Java, p50",
        unit="ms",
        ours=_p50(first["ours"]),
        samples=len(first["ours"]),
        target=None,
        reference=_p50(first["reference"]),
        reference_name="java -version",
    )


def _of_program(language: str, plan: Plan) -> Figure:
    title, code = _PROGRAMS[language]
    samples: list[float] = []
    note = ""
    try:
        build_template(_TEMPLATE, languages=[language], force=True)

        for _ in range(plan.repetitions(10)):
            with Sandbox(_TEMPLATE) as sandbox:
                execution = sandbox.run_code(code, language=language, timeout=60)

                if "".join(execution.logs.stdout) == "hello\n" and execution.usage:
                    samples.append(execution.usage.user_cpu_seconds + execution.usage.system_cpu_seconds)
    except FumehoodError as error:
        note = error.message

    return Figure(
        name=f"{title} in a fresh sandbox, CPU, p50",
        unit="s",
        ours=statistics.median(samples) if samples else 0.0,
        samples=len(samples),
        target=_TARGET_CPU_SECONDS,
        note=note,
    )


def _is_missing(sandbox: Sandbox, language: str) -> bool:
    """Returns whether a language is not here; its first context prepares what later ones are forked from."""
    try:
        sandbox.run_code("1", language=language)
    except LanguageUnavailableError:
        return True

    return False


def _first_cell(sandbox: Sandbox, language: str) -> Callable[[], float]:
    def run() -> float:
        made = []

        def first() -> None:
            made.append(sandbox.create_code_context(language=language))
            sandbox.run_code("1", context=made[0])

        taken = milliseconds(first)
        sandbox.remove_code_context(made[0])
        return taken

    return run


def _bare_python() -> float:
    return milliseconds(
        lambda: subprocess.run([sys.executable, "-S", "-c", "pass"], close_fds=False, check=True)
    )


def _p50(samples: list[float]) -> float:
    return percentile(samples, 50) if samples else 0.0
