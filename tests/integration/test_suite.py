"""`make test` itself: what a run says of tests that fail always, once, and in numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# No others: what they import would take longer than the tests.
_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
_PASSES = "def test_passes(): pass\n"


def _suite(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n serial\n left_out\naddopts = -p no:cacheprovider\n"
    )
    # This run may be a worker of another one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.suite", "--processes", "0", *options],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT)} | _PLUGINS,
        capture_output=True,
        text=True,
        check=False,
    )


def _fails_once(folder: Path, *names: str) -> str:
    """A module whose tests fail in their first run."""
    return "import os\n" + "\n".join(
        f"def test_{name}():\n    is_first = not os.path.exists({str(folder / name)!r})\n"
        f"    open({str(folder / name)!r}, 'w').close()\n    assert not is_first\n"
        for name in names
    )


def test_what_passes_when_it_runs_alone_is_named(tmp_path):
    """One that failed beside others, and one that needs the machine alone."""
    (tmp_path / "test_parallel.py").write_text(_PASSES + _fails_once(tmp_path, "a"))
    serial = "import pytest\npytestmark = pytest.mark.serial\n"
    (tmp_path / "test_serial.py").write_text(serial + _PASSES + _fails_once(tmp_path, "b"))
    done = _suite(tmp_path)
    last = done.stdout.partition("UNSTEADY")[2].split("\n  ")[1:]
    assert [line.strip() for line in last] == ["test_parallel.py::test_a", "test_serial.py::test_b"]
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("place", "names", "says"),
    [
        ("test_a.py", ["always"], "failed twice:\n  test_a.py::test_always"),
        ("test_a.py", list("abcdefghi"), "failed:\n  test_a.py::test_a"),
        ("tests/attacks/test_a.py", ["a"], "failed:\n  tests/attacks/test_a.py::test_a"),
        ("conftest.py", [], ""),
    ],
    ids=["always", "many", "an attack", "no test"],
)
def test_what_is_no_accident_fails_the_run(tmp_path, place, names, says):
    """What fails again, many at once, an attack that got through once, and what a plugin finds at the end."""
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "test_passes.py").write_text(_PASSES)
    written = {
        "always": "def test_always(): assert 0",
        "": "def pytest_sessionfinish(session): session.exitstatus = 1",
    }
    file.write_text(written.get("".join(names)) or _fails_once(tmp_path, *names))
    done = _suite(tmp_path)
    assert done.returncode == 1, done.stdout
    assert says in done.stdout


@pytest.mark.parametrize(
    ("options", "runs"),
    [([], {"a", "c"}), (["--all"], {"a", "b", "c", "d"}), (["--left-out"], {"b", "d"})],
    ids=["by itself", "all", "left out"],
)
def test_what_is_left_out_runs_when_it_is_asked_for(tmp_path, options, runs):
    """Of what runs side by side, and of what runs alone."""
    marks = {"a": [], "b": ["left_out"], "c": ["serial"], "d": ["serial", "left_out"]}
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n"
        + "\n".join(
            "".join(f"@pytest.mark.{mark}\n" for mark in each)
            + f"def test_{name}(): open({str(tmp_path / name)!r}, 'w').close()\n"
            for name, each in marks.items()
        )
    )
    done = _suite(tmp_path, *options)
    assert done.returncode == 0, done.stdout
    assert {name for name in marks if (tmp_path / name).exists()} == runs
