"""The documentation hangs together: each page can be found, and each link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.snippets import LANGUAGES, snippets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *DOCS.rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
]
MAX_PICTURE_BYTES = 60_000
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
        found = snippets(page.read_text(encoding="utf-8"))
        # A block that is not run may be a piece of a program.
        blocks = [one.code for one in found if one.language == "python" and not one.reason]

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


def test_each_snippet_is_run_or_says_why_not():
    """Pages that tests run have all snippets that can be run; any other block of a program has a reason above it."""
    run = {
        ROOT / "README.md",
        DOCS / "reliability.md",
        *(DOCS / "guides").glob("*.md"),
        *(DOCS / "tutorials").glob("*.md"),
    }
    programs = r"python|py|pycon|ipython|sh|bash|shell|console"
    unexplained = []

    for page in PAGES:
        for block in re.finditer(rf"(.*)\n```({programs})\n", page.read_text(encoding="utf-8")):
            if block[2] in LANGUAGES and page in run:
                continue

            if not re.fullmatch(r"<!-- not run: \S+ \S+ .+ -->", block[1]):
                unexplained.append(f"{page.relative_to(ROOT)}: {block[0]!r}")

    assert unexplained == []


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


def test_each_decision_has_the_same_sections():
    """Status, Context, Decision, Consequences: a reader finds the same thing in the same place of each."""
    pages = sorted(path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md")
    sections = {path.name: re.findall(r"^## (.+)$", _text(path), re.MULTILINE) for path in pages}
    wanted = ["Status", "Context", "Decision", "Consequences"]
    assert {name: found for name, found in sections.items() if found != wanted} == {}
    assert [path.name for path in pages if len(path.read_text().splitlines()) >= 90] == []


def test_pictures_are_small_and_shown():
    """Each picture is of a page, and none makes a page slow; one that is text loads and runs nothing."""
    pictures = [path for path in DOCS.rglob("*") if path.suffix in (".svg", ".png")]
    shown = {(page.parent / link).resolve() for page in PAGES for link in _links(page)}
    assert sorted(path.name for path in pictures if path.resolve() not in shown) == []
    assert [path.name for path in pictures if path.stat().st_size >= MAX_PICTURE_BYTES] == []

    for path in pictures:
        if path.suffix == ".svg":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"<script|href=|url\((?!#)|@import", text), path.name
            assert not [link for link in re.findall(r"https?://[^\s\"']+", text) if "w3.org" not in link], (
                path.name
            )
