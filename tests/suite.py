"""The tests that `make test` runs: side by side, then those that need the machine alone, then once more what failed.

What is left to `make test-all` stands in `left_out`. Each part is a pytest of its own, and both run whatever the other
one finds, so that one run shows all there is to mend.

A few tests that fail are run once more by themselves, as CPython's `regrtest --rerun` does: ten thousand of them on a
busy machine, each with real processes, are stopped now and then by what the machine did in that second. What passes
then is named as unsteady in the last lines, and is to be mended. More than a few at once are no accident, and an attack
that has got through once has got through: neither gets a second look.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.left_out import MARK

_MOST_LOOKED_AT_AGAIN = 8
_NEVER_LOOKED_AT_AGAIN = ("tests/attacks/", "tests/unit/jail/", "tests/rules/")
# Where a pytest of this suite writes the names of the tests that failed.
_FAILED = "FUMEHOOD_TESTS_THAT_FAILED"
_OK, _FAILURES, _NOTHING_RAN = (
    int(code)
    for code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the name of a test that failed, in its call or in what it sets up or tears down."""
    if report.failed and (path := os.environ.get(_FAILED)) and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return 0 when each test has passed, if need be when it was run again, else pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("--processes", default="3", help="how many run tests side by side")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", dest="chosen", action="store_const", const="", help="what is left out, too")
    which.add_argument(
        "--left-out", dest="chosen", action="store_const", const=f" and {MARK}", help="that alone"
    )
    parser.set_defaults(chosen=f" and not {MARK}")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    given = parser.parse_args(arguments)
    together = ["--numprocesses", given.processes, "--dist", "loadfile", "--no-loadscope-reorder"]
    failed: list[str] = []

    for marks, how in (("not serial", together), ("serial", [])):
        code, more = _run(["-m", f"{marks}{given.chosen}", *how, *given.options])
        failed += more

        # Broken off; or what failed is no test, such as what a plugin finds at the end.
        if code not in (_OK, _FAILURES, _NOTHING_RAN) or (code == _FAILURES and not more):
            return code

    return _looked_at_again(failed, given.options) if failed else _OK


def _run(arguments: list[str]) -> tuple[int, list[str]]:
    """Run a pytest; return its exit code, and the names of the tests that failed."""
    with tempfile.NamedTemporaryFile() as file:
        words = [sys.executable, "-m", "pytest", "-p", "tests.suite", *arguments]
        done = subprocess.run(words, env=os.environ | {_FAILED: file.name}, check=False)
        return done.returncode, list(dict.fromkeys(Path(file.name).read_text(encoding="utf-8").splitlines()))


def _looked_at_again(failed: list[str], options: list[str]) -> int:
    if len(failed) > _MOST_LOOKED_AT_AGAIN or any(name.startswith(_NEVER_LOOKED_AT_AGAIN) for name in failed):
        print("failed:", *failed, sep="\n  ", flush=True)
        return _FAILURES

    print("failed, and run once more by themselves:", *failed, sep="\n  ", flush=True)
    # The paths and -k of a call say which tests, and these are named now.
    code, again = _run([*failed, *(option for option in options if option.startswith("--"))])

    if code != _OK:
        print("failed twice:", *(again or failed), sep="\n  ", flush=True)
        return code

    print("UNSTEADY: failed beside others, and passed alone:", *failed, sep="\n  ", flush=True)
    return _OK


if __name__ == "__main__":
    sys.exit(main())
