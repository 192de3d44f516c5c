"""The adapters of agent frameworks, each with its real framework, in an environment of the frameworks' own.

A folder of tests/frameworks is one framework; a list beside the folders (`together.txt`) is one environment, which
`make test` sets up. The page of the guides that shows them runs in there as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "frameworks"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/requirements.txt"))
PAGE = ROOT / "docs" / "guides" / "frameworks.md"
_MOST_SECONDS = 300
_SECTION = re.compile(r"^## .+?\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _sections() -> dict[str, str]:
    """The Python blocks of each section of the page, by the folder of the adapter that they import."""
    found = ["\n\n".join(_BLOCK.findall(text)) for text in _SECTION.findall(PAGE.read_text(encoding="utf-8"))]
    return {_adapter(code): code for code in found if code}


def _adapter(code: str) -> str:
    imported = re.findall(r"fumehood\.frameworks\.(\w+)", code)
    names = [name for name in imported if name in NAMES]
    assert names, f"which adapter does this show? {code}"
    return names[0]


def _python_for(requirement: str) -> Path:
    """The interpreter of the environment that holds what `requirement` names."""
    lists = [path for path in sorted(FOLDER.glob("*.txt")) if requirement in path.read_text(encoding="utf-8")]
    assert len(lists) == 1, f"{requirement!r} stands in {lists}, and should in exactly one"
    folder = ROOT / ".venv-frameworks" / lists[0].stem

    if not (folder / ".installed").exists():
        pytest.skip(f"{folder} is not set up; `make {folder.relative_to(ROOT)}/.installed` does it")

    return folder / "bin" / "python"


def _tested(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of one adapter, and its section of the page, in the environment that holds its framework."""
    arguments = ["-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "pytest"), str(FOLDER / name)]
    code = _sections().get(name)

    if code is not None:
        shutil.copy(ROOT / "examples" / "data" / "penguins.csv", folder)
        (folder / "section.py").write_text(code, encoding="utf-8")
        arguments.append(str(FOLDER / "test_section.py"))

    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    return subprocess.run(
        [str(_python_for(f"-r {name}/")), "-m", "pytest", *arguments],
        cwd=folder,
        env=environment | {"FUMEHOOD_TEST_SECTION": str(folder / "section.py")},
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """The runs of all adapters that were asked for, two at a time: most of each is one process that imports."""
    items = [item for item in request.session.items if getattr(item, "function", None) is test_adapter]
    names = [item.callspec.params["name"] for item in items if isinstance(item, pytest.Function)]
    pool = ThreadPoolExecutor(max_workers=2)
    yield {name: pool.submit(_tested, name, tmp_path_factory.mktemp(name)) for name in names}
    pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(_MOST_SECONDS + 10)
@pytest.mark.parametrize("name", NAMES)
def test_adapter(name: str, runs: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    """An adapter passes its tests with the framework itself, which a scripted model drives; its page runs too."""
    done = runs[name].result()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_each_section_shows_an_adapter() -> None:
    """What the page shows is run by one of the tests above."""
    assert set(_sections()) <= set(NAMES)
    assert len(_sections()) == sum(bool(_BLOCK.search(text)) for text in _SECTION.findall(PAGE.read_text()))
