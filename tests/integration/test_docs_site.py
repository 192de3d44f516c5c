"""The documentation as a site: built without a warning, complete, loaded from one place, searched, and served."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from tests.conftest import RunningServer

import fumehood
import fumehood.llm
from fumehood.server.routes import documentation

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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.timeout(450)
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


@pytest.mark.timeout(450)
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


@pytest.mark.timeout(450)
def test_the_first_page_leads_to_all_others(site: Path) -> None:
    """The navigation names each page of the repository, and begins with the five minutes."""
    text = (site / "index.html").read_text()
    places = re.findall(r'<a class="reference internal" href="([^"#]+)"', text)
    assert places[0] == "docs/tutorials/1-five-minutes.html"
    linked = {(site / place).resolve() for place in places}
    pages = {page for page in (site / "docs").rglob("*.html") if page.parent.name != "decisions"}
    assert sorted(page.name for page in pages - linked) == []
    decisions = (site / "docs" / "decisions" / "README.html").read_text()
    assert all(page.name in decisions for page in (site / "docs" / "decisions").glob("0*.html"))


# The scripts of the search, as a page loads them, in place of a browser: prints the pages that a query finds.
SEARCH = """
const fs = require("fs"), vm = require("vm");
const [folder, ...words] = process.argv.slice(1);
const nothing = () => undefined;
const place = {innerText: "", textContent: "", append: nothing, appendChild: nothing, classList: {add: nothing}};
const scope = vm.createContext({
  document: {
    documentElement: {dataset: {content_root: "./"}},
    createElement: () => ({...place}), getElementById: () => ({...place}), querySelectorAll: () => [],
    readyState: "complete", addEventListener: nothing, body: {appendChild: nothing},
  },
  console, URL, URLSearchParams, Set, Map, location: {hash: ""}, addEventListener: nothing,
  SPHINX_HIGHLIGHT_ENABLED: false,
  DOCUMENTATION_OPTIONS: {FILE_SUFFIX: ".html", LINK_SUFFIX: ".html", BUILDER: "html"},
});
scope.window = scope;
for (const name of ["doctools.js", "language_data.js", "searchtools.js"])
  vm.runInContext(fs.readFileSync(`${folder}/_static/${name}`, "utf8"), scope);
vm.runInContext(fs.readFileSync(`${folder}/searchindex.js`, "utf8"), scope);
for (const word of words) {
  scope.query = word;
  const found = vm.runInContext(
    "{ const [, terms, excluded, marked, titles] = Search._parseQuery(query); " +
    "Search._performSearch(query, terms, excluded, marked, titles) }", scope);
  console.log(JSON.stringify(found.map((result) => result[0])));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.timeout(450)
def test_the_search_finds_pages(site: Path) -> None:
    """With the scripts and the index of the site, and nothing else: a word, a public name, two words."""
    argv = ["node", "-e", SEARCH, str(site), "rollback", "CodeInterpreter", "cgroup delegate", "zzqx"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rollback, interpreter, delegate, nothing = [json.loads(line) for line in done.stdout.splitlines()]
    assert "docs/guides/time-travel" in rollback
    assert "docs/reference-llm" in interpreter
    assert "docs/guides/troubleshooting" in delegate
    assert nothing == []


@pytest.fixture(scope="module")
def served(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server where the distribution of the site is installed, built as for a release."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "docs" / "package", folder / "docs" / "package")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(site, folder / "build" / "site")
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        folder,
        folder / "docs" / "package",
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--target",
        folder / "installed",
        wheel,
    ]
    subprocess.run(install, check=True, timeout=100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "installed"))
        server = RunningServer(tmp_path_factory.mktemp("server") / "state", pool_size=0)

    yield server
    server.stop()


@pytest.mark.timeout(450)
def test_a_server_shows_the_site(served: RunningServer, site: Path) -> None:
    """At /docs/, without a token, each file as it was built; a browser may load from this server alone."""
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        assert client.get("/docs").headers["location"] == "docs/"
        first = client.get("/docs/")
        assert first.status_code == 200
        assert first.content == (site / "index.html").read_bytes()
        assert first.headers["content-type"] == "text/html; charset=utf-8"
        policy = first.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "//" not in policy

        for path in ("docs/reference-llm.html", "searchindex.js", "_static/searchtools.js", "search.html"):
            assert client.get(f"/docs/{path}").content == (site / path).read_bytes(), path

        again = client.get("/docs/", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.head("/docs/search.html").content == b""
        assert client.post("/docs/").status_code == 405


@pytest.mark.timeout(450)
@pytest.mark.parametrize(
    "path", ["nothing.html", "%2e%2e/__init__.py", "..%2f__init__.py", "%2Fetc/passwd", "_static", "a%00b"]
)
def test_a_server_shows_nothing_else(served: RunningServer, path: str) -> None:
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        assert client.get(f"/docs/{path}").status_code == 404


def test_without_the_site_a_server_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither installed nor built: 404, with the command for each case."""
    monkeypatch.setattr(documentation, "_PACKAGE", "fumehood_docs_missing")
    monkeypatch.setattr(documentation, "_CHECKOUT", tmp_path)
    app = FastAPI()
    app.include_router(documentation.router)

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/docs/")

    answer = asyncio.run(ask())
    assert answer.status_code == 404
    assert "pip install 'fumehood[docs]'" in answer.text
    assert "make docs" in answer.text


def test_the_extra_names_the_version_of_the_site() -> None:
    """The site of one version is no documentation of another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["docs"] == [f"fumehood-docs=={project['version']}"]
