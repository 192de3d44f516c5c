"""The documentation hangs together: each page can be found, and each link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *DOCS.rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
]
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _text(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def _links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", _text(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def _anchors(page: Path) -> set[str]:
    """The names of its headings, as the forges make them."""
    headings = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def test_each_block_of_python_stands_alone(tmp_path):
    """Who copies one block of a page can run it: it uses no name of a block before, and imports what is public."""
    for page in (ROOT / "README.md", *(DOCS / "guides").glob("*.md")):
        blocks = re.findall(
            r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )

        for number, block in enumerate(blocks, start=1):
            assert "fumehood.notebook." not in block, f"{page.name}, block {number}"
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block, encoding="utf-8")

    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--isolated", "--select", "F821", "--output-format", "concise", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_each_page_is_in_the_index():
    """A page that nobody finds is not written. Decisions have an index of their own: their folder."""
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in _links(DOCS / "README.md")}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"} - {DOCS / "README.md"}

    assert sorted(page.name for page in pages - listed) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_somewhere(page):
    """To a file that is there, and to a heading of it."""
    broken = []

    for link in _links(page):
        name, _, anchor = link.partition("#")
        there = (page.parent / name).resolve() if name else page

        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in _anchors(there)):
            broken.append(link)

    assert broken == []


def test_each_decision_has_a_number_of_its_own():
    """The number of a decision is in its file's name and in its heading, and no other has it."""
    pages = sorted(path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md")
    numbers = [path.name[:4] for path in pages]
    assert len(set(numbers)) == len(numbers)
    wrong = [path.name for path in pages if not path.read_text().startswith(f"# {int(path.name[:4])}. ")]
    assert wrong == []
