"""Every example runs, and every Python block of the README and the guides."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]

# What an example prints when it did what it shows.
EXPECTED = {
    "async_many": ["sum      45", "broken   NameError", "numpy    45"],
    "commands": ["Linux", "exit code 1", "sorted: ['4', '30', '200']"],
    "contexts": ["default: ('first', 'second')", "second:  ('second', '/home/user/work')"],
    "demo": ["41.66666", "801.954", "scatter chart", "KeyError", "isolation level"],
    "files": ["/mnt/data/mass.csv", "Gentoo,5076.0"],
    "limits": ["time_limit after 1.0 s", "state: 'still here'", "kept 1000 bytes, dropped 4001"],
    "repair": ["try again: TypeError", "answer: 8"],
    "stateless": ["printed:  42", "failed:   ZeroDivisionError"],
    "streaming": ["callback: 'step 0", "StdoutEvent at ", "result: 20", "finished"],
}


def _run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    """An example ends well and prints what it is there to show."""
    shown = _run([str(example)], tmp_path)

    for text in EXPECTED[example.stem]:
        assert text in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_blocks_of_a_page(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page run in order, in a folder that has the data they name."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    if not blocks:
        return

    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    shutil.copy(ROOT / "examples" / "data" / "penguins.csv", tmp_path)
    (tmp_path / "page.py").write_text("\n\n".join(blocks), encoding="utf-8")
    _run(["page.py"], tmp_path)
