"""The matrix: what holds for packages of this environment in sandboxes, one JSON object a line and package.

Runs as a program in an environment that has fumehood and the packages, whose names are its arguments. With
`--preload A,B` only these are preloaded.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from cases import CASES, Case

from fumehood import Limits, Sandbox, Template
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal, call
from fumehood.templates.recipe import SkippedModule

OK = "yes"
_FIRST_SECONDS = 120
_AGAIN_SECONDS = 40
_HANGS_SECONDS = 5
_MAX_REASON_CHARS = 160
_LIMITS = Limits(memory_bytes=2 << 30, processes=256)


class Failed(Exception):
    """A step of a case did not do what it should; what it did."""


def _run(sandbox: Any, code: str, seconds: float) -> Any:
    execution = sandbox.run_code(code, timeout=seconds)

    if execution.error is not None:
        raise Failed(f"{execution.error.name}: {execution.error.value}")

    return execution


def _step(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        text = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        return text.partition("\n")[0][:_MAX_REASON_CHARS]

    return OK


def _beside(case: Case, backend: Any, row: dict[str, str]) -> None:
    """The package in a sandbox of the default template: used, shown, rolled back, forked."""
    with Sandbox(backend=backend, limits=_LIMITS) as sandbox:
        shown: list[str] = []

        def work() -> None:
            for result in _run(sandbox, case.code, _FIRST_SECONDS).results:
                shown.extend(result.parts)

            _run(sandbox, case.again, _AGAIN_SECONDS)

        row["works"] = _step(work)

        if row["works"] != OK:
            return

        matched = [mime for mime in shown if fnmatch.fnmatch(mime, case.shows)]
        row["shows"] = (
            OK if matched else f"no {case.shows}, but {', '.join(dict.fromkeys(shown)) or 'nothing'}"
        )
        seconds = _HANGS_SECONDS if case.hangs else _AGAIN_SECONDS
        row["threads"] = _run(sandbox, "import os; len(os.listdir('/proc/self/task')) - 1", 20).text

        def go_back() -> None:
            checkpoint = sandbox.checkpoint()
            row["left behind"] = "; ".join(checkpoint.left_behind)
            _run(sandbox, "changed = 1", 20)
            sandbox.rollback(checkpoint)
            assert _run(sandbox, "'changed' in globals()", 20).text == "False"
            _run(sandbox, case.again, seconds)

        def fork() -> None:
            child = sandbox.fork()
            try:
                _run(child, case.again, seconds)
            finally:
                child.kill()

            _run(sandbox, case.again, seconds)

        row["forks"] = _step(fork)
        row["goes back"] = _step(go_back)


def _preloaded(case: Case, template: Template, backend: Any, row: dict[str, str]) -> None:
    """The package on a preload list: a start costs no import, if it can be preloaded."""

    def work() -> None:
        with Sandbox(template, backend=backend, limits=_LIMITS) as sandbox:
            _run(sandbox, case.code, _FIRST_SECONDS)
            _run(sandbox, case.again, _AGAIN_SECONDS)

    row["preloaded"] = _step(work)

    if row["preloaded"] == OK:
        left_out: tuple[SkippedModule, ...] = call(backend.left_out, template.name)
        reasons = [f"left out: {one.reason}" for one in left_out if one.module == case.module]
        row["preloaded"] = "; ".join(reasons) or OK


def main(arguments: list[str]) -> None:
    """Examines the packages and prints what is found; those that are preloaded share one template."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--preload", type=lambda text: text.split(","))
    given = parser.parse_args(arguments)
    cases = [case for case in CASES if case.package in given.names]
    preloaded = [case for case in cases if given.preload is None or case.package in given.preload]
    template = Template(name="with them", preload=tuple(case.module for case in preloaded))
    portal = Portal()
    try:
        backend = make_backend(EngineSettings(pool_size=0), portal)

        for case in cases:
            row = {"package": case.package, "version": metadata.version(case.package)}
            row["starts"] = _step(lambda case=case, row=row: _beside(case, backend, row))

            if case in preloaded:
                _preloaded(case, template, backend, row)

            print(json.dumps(row), flush=True)
    finally:
        portal.close()


if __name__ == "__main__":
    main(sys.argv[1:])
