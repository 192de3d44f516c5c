"""The packages that most environments hold beside fumehood, in an environment of their own that `make test` sets up.

`make test-packages` tries many more, and writes docs/guides/packages.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "packages"
COMMON = ROOT / ".venv-packages" / "common"
NAMES = [line.partition("==")[0] for line in (FOLDER / "common.txt").read_text().splitlines() if "==" in line]
# A process that forks loses their threads, and they would wait for these.
HANGING = {"polars"}
UNFIT = {"polars"}
# Every other one would be imported twice more: a template starts again without what does not fit.
PRELOADED = ["pyarrow", "polars", "duckdb"]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (COMMON / ".installed").exists(),
        reason="needs .venv-packages/common; `make .venv-packages/common/.installed` sets it up",
    ),
]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    """What the matrix has found of them, all in one environment."""
    done = subprocess.run(
        [str(COMMON / "bin" / "python"), "matrix.py", *NAMES, "--preload", ",".join(PRELOADED)],
        cwd=FOLDER,
        env={name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {row["package"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_a_package_works_in_a_sandbox(name: str, rows: dict[str, dict[str, str]]) -> None:
    """It works beside the default template, which starts; its table or chart is a result; it goes on after a fork."""
    row = rows[name]
    held = ["starts", "works", "shows"]

    if name not in HANGING:
        held += ["goes back", "forks"]

    assert {step: row.get(step) for step in held} == dict.fromkeys(held, "yes")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_checkpoint_cannot_keep_is_named(name: str, rows: dict[str, dict[str, str]]) -> None:
    """A library that hangs without its threads is named by the checkpoint; one that works is not."""
    told = rows[name]["left behind"].partition(";")[0]
    assert told == (f"the threads of {name}, without which it hangs" if name in HANGING else "")


@pytest.mark.parametrize("name", PRELOADED)
def test_a_package_that_can_be_preloaded_is(name: str, rows: dict[str, dict[str, str]]) -> None:
    """One that leaves a thread is left out, which is said, and works all the same."""
    expected = "left out: its import leaves" if name in UNFIT else "yes"
    assert rows[name]["preloaded"].startswith(expected), rows[name]


def test_packages_size_themselves_by_the_limits() -> None:
    """Not by the machine: with one core and 1 GiB, duckdb takes 80 % of it and one thread, and polars one thread."""
    code = (
        "import duckdb, polars\n"
        "settings = duckdb.sql('from duckdb_settings()').fetchall()\n"
        "found = {name: value for name, value, *_ in settings}\n"
        "print(polars.thread_pool_size(), found['threads'], found['memory_limit'])"
    )
    program = (
        "from fumehood import Limits, Sandbox, Template\n"
        "limits = Limits(cpu_cores=1, memory_bytes=1 << 30)\n"
        "with Sandbox(Template(name='nothing preloaded', preload=()), limits=limits) as sandbox:\n"
        f"    print(*sandbox.run_code({code!r}).logs.stdout)\n"
    )
    done = subprocess.run(
        [str(COMMON / "bin" / "python"), "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "1 1 819.1 MiB"
