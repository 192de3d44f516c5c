"""The adapters of agent frameworks, each with its real framework, in an environment of the frameworks' own.

A folder of tests/frameworks is one framework; a list beside the folders (`together.txt`) is one environment, which
`make test` sets up. The page of the guides that shows them runs in there as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "frameworks"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/requirements.txt"))
PAGE = ROOT / "docs" / "guides" / "frameworks.md"
_MOST_SECONDS = 900
_SECTION = re.compile(r"^## .+?\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
# What says that it is not run there is run with an image: test_debian_image.py.
_BLOCK = re.compile(r"(?<!-->\n)^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _sections() -> dict[str, str]:
    """The Python blocks of each section of the page, by the folder of the adapter that they import."""
    found = ["\n\n".join(_BLOCK.findall(text)) for text in _SECTION.findall(PAGE.read_text(encoding="utf-8"))]
    return {_adapter(code): code for code in found if code}


def _adapter(code: str) -> str:
    imported = re.findall(r"fumehood\.frameworks\.(\w+)", code)
    names = [name for name in imported if name in NAMES]
    assert names, f"which adapter does this show? {code}"
    return names[0]


def _environments() -> dict[str, list[str]]:
    """The adapters that each environment holds, by the name of the list that makes it."""
    lists = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}
    return {stem: [name for name in NAMES if f"-r {name}/" in text] for stem, text in lists.items()}


def _environment_of(name: str) -> str:
    found = [stem for stem, names in _environments().items() if name in names]
    assert len(found) == 1, f"{name!r} stands in {found}, and should in exactly one"
    return found[0]


@dataclass(frozen=True)
class _Run:
    """What the tests of one environment said.

    Attributes:
        text: All that was printed.
        outcomes: By adapter, how each of its tests ended: "" when it passed.
    """

    text: str
    outcomes: Mapping[str, list[str]]


def _tested(environment: str, names: list[str], folder: Path) -> _Run:
    """Run the tests of adapters, and their sections of the page, in the environment that holds their frameworks.

    All in one process: most of what they take is what they import, and much of that is the same.
    """
    sections = folder / "sections"
    sections.mkdir()

    for name, code in _sections().items():
        if name in names:
            (sections / f"{name}.py").write_text(code, encoding="utf-8")

    shutil.copy(ROOT / "examples" / "data" / "penguins.csv", folder)
    report = folder / "report.xml"
    arguments = ["-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "pytest"), f"--junitxml={report}"]
    arguments += [str(FOLDER / name) for name in names]

    if any(sections.iterdir()):
        arguments.append(str(FOLDER / "test_section.py"))

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    done = subprocess.run(
        [str(ROOT / ".venv-frameworks" / environment / "bin" / "python"), "-m", "pytest", *arguments],
        cwd=folder,
        env=inherited | {"FUMEHOOD_TEST_SECTIONS": str(sections)},
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        check=False,
    )
    text = f"{done.stdout}\n{done.stderr}"
    # Whatever stands behind the last test, such as a crash at the end, is a fault of all.
    assert done.returncode in (0, 1), text
    return _Run(text, _outcomes(report, names))


def _outcomes(report: Path, names: list[str]) -> dict[str, list[str]]:
    outcomes: dict[str, list[str]] = {name: [] for name in names}

    for case in ElementTree.parse(report).iter("testcase"):
        place = case.attrib["classname"].partition(".")[0]
        adapter = place if place in outcomes else case.attrib["name"].partition("[")[2].rstrip("]")
        faults = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        outcomes[adapter].append(f"{case.attrib['name']}: {faults[0]}" if faults else "")

    return outcomes


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[_Run]]]:
    """By environment, the run of the adapters that were asked for."""
    items = [item for item in request.session.items if getattr(item, "function", None) is test_adapter]
    asked = [item.callspec.params["name"] for item in items if isinstance(item, pytest.Function)]
    here = {stem: [name for name in names if name in asked] for stem, names in _environments().items()}

    with ThreadPoolExecutor() as pool:
        yield {
            stem: pool.submit(_tested, stem, names, tmp_path_factory.mktemp(stem))
            for stem, names in here.items()
            if names and (ROOT / ".venv-frameworks" / stem / ".installed").exists()
        }


@pytest.mark.timeout(_MOST_SECONDS + 10)
@pytest.mark.parametrize("name", NAMES)
def test_adapter(name: str, runs: dict[str, Future[_Run]]) -> None:
    """An adapter passes its tests with the framework itself, which a scripted model drives; its page runs too."""
    environment = _environment_of(name)

    if environment not in runs:
        folder = f".venv-frameworks/{environment}"
        pytest.skip(f"{folder} is not set up; `make {folder}/.installed` does it")

    run = runs[environment].result()
    assert len(run.outcomes[name]) > (name in _sections()), f"no test of {name} ran\n{run.text}"
    assert not any(run.outcomes[name]), f"{list(filter(None, run.outcomes[name]))}\n{run.text}"


def test_each_section_shows_an_adapter() -> None:
    """What the page shows is run by one of the tests above."""
    assert set(_sections()) <= set(NAMES)
    assert len(_sections()) == sum(bool(_BLOCK.search(text)) for text in _SECTION.findall(PAGE.read_text()))
