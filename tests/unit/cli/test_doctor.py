"""What `fumehood doctor` says of the environment that sandboxes are made from."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest

from fumehood.cli import doctor


def test_packages_that_are_compiled_at_each_start_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that compiles them once; what is not installed is left to the row `preload`."""
    (tmp_path / "bare").mkdir()
    source = tmp_path / "bare" / "__init__.py"
    source.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    row = doctor._bytecode(("bare.part", "not_there"))
    assert row["state"] == "missing"
    assert row["need"] == "advice"
    assert row["why"] == "bare: compiled at each start of a template, which takes seconds"
    assert row["how_to_get_it"].startswith(f"{sys.executable} -m compileall -q ")

    py_compile.compile(str(source))
    row = doctor._bytecode(("bare.part", "not_there"))
    assert row["state"] == "there"
    assert row["why"] == "IPython, bare: compiled once"
