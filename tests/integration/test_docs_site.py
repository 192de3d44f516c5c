"""The documentation as a site: it is built without a warning, complete, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fumehood
import fumehood.llm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--builder", "html", "--conf-dir", "docs", "--fail-on-warning", "--keep-going", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options,
        "--doctree-dir",
        folder / "doctrees",
        ".",
        folder / "html",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.timeout(250)
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures are files of the site; a link may lead elsewhere, when it is followed."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70

    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"([^\"]*)\"", page.read_text()
        )
        assert [place for place in loaded if re.match(r"(?:https?:)?//", place)] == [], page.name
        here = [
            place.partition("?")[0].partition("#")[0] for place in loaded if not place.startswith("data:")
        ]
        assert [place for place in here if place and not (page.parent / place).exists()] == [], page.name

    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text()), style.name


@pytest.mark.timeout(250)
def test_each_public_name_can_be_linked_to_and_found(site: Path) -> None:
    """It has an anchor on its page, and the index of the search knows it."""
    index = json.loads(
        (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    )

    for page, package in (("reference", fumehood), ("reference-llm", fumehood.llm)):
        text = (site / "docs" / f"{page}.html").read_text()
        anchors = set(re.findall(r'id="([^"]+)"', text))
        assert [name for name in package.__all__ if name.lower().replace("_", "-") not in anchors] == []

    assert "docs/reference-llm" in index["docnames"]
    assert {"codeinterpret", "rollback", "landlock"} <= set(index["terms"])


@pytest.mark.timeout(250)
def test_the_first_page_leads_to_all_others(site: Path) -> None:
    """The navigation names each page of the repository, and begins with the five minutes."""
    text = (site / "index.html").read_text()
    places = re.findall(r'<a class="reference internal" href="([^"#]+)"', text)
    assert places[0] == "docs/guides/getting-started.html"
    linked = {(site / place).resolve() for place in places}
    pages = {page for page in (site / "docs").rglob("*.html") if page.parent.name != "decisions"}
    assert sorted(page.name for page in pages - linked) == []
    decisions = (site / "docs" / "decisions" / "README.html").read_text()
    assert all(page.name in decisions for page in (site / "docs" / "decisions").glob("0*.html"))
