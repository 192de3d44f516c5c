"""The adapters of agent frameworks, each with its real framework, in an environment of the frameworks' own.

A folder of tests/frameworks is one framework; a list beside the folders (`together.txt`) is one environment, which
`make test` sets up. The page of the guides that shows them runs in there as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "frameworks"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/requirements.txt"))
PAGE = ROOT / "docs" / "guides" / "frameworks.md"
# A section of the page for each framework, under its own heading.
SECTIONS = re.findall(
    r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
BLOCKS = {
    heading: "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for heading, text in SECTIONS
}


def _python_for(requirement: str) -> Path:
    """The interpreter of the environment that holds what `requirement` names."""
    lists = [path for path in sorted(FOLDER.glob("*.txt")) if requirement in path.read_text(encoding="utf-8")]
    assert len(lists) == 1, f"{requirement!r} stands in {lists}, and should in exactly one"
    folder = ROOT / ".venv-frameworks" / lists[0].stem

    if not (folder / ".installed").exists():
        pytest.skip(f"{folder} is not set up; `make {folder.relative_to(ROOT)}/.installed` does it")

    return folder / "bin" / "python"


def _run(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("name", NAMES)
def test_adapter(name: str, tmp_path: Path) -> None:
    """An adapter passes its tests with the framework itself, which a scripted model drives."""
    tests = FOLDER / name
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "pytest")]
    _run([str(_python_for(f"-r {name}/")), "-m", "pytest", *options, str(tests)], FOLDER)


@pytest.mark.parametrize("heading", [heading for heading, code in BLOCKS.items() if code])
def test_section_of_the_page(heading: str, tmp_path: Path) -> None:
    """The Python blocks of a section of the guide run in order, in a folder that has the data they name."""
    code = BLOCKS[heading]
    name = re.search(r"fumehood\.frameworks\.(\w+)", code)
    assert name is not None, f"{heading}: which adapter does it show?"
    shutil.copy(ROOT / "examples" / "data" / "penguins.csv", tmp_path)
    (tmp_path / "section.py").write_text(code, encoding="utf-8")
    _run([str(_python_for(f"-r {name[1]}/")), "section.py"], tmp_path)
