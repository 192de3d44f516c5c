"""The page at /console/ without a browser: its policies to the byte, and that it costs a server nothing."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fumehood.server.app import create_app
from fumehood.server.assembly import open_services
from fumehood.server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "src" / "fumehood" / "console" / "dist"
PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; frame-src 'self'; worker-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types fumehood dompurify"
)
STILL = (
    "sandbox allow-scripts; default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; connect-src 'none'; frame-src 'none'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
MOVING = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data:; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; worker-src blob:; "
    "connect-src 'none'; frame-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; webrtc 'block'"
)


@pytest.fixture
def browser(server: Any) -> Iterator[httpx2.Client]:
    """What asks as a browser does, without a token."""
    with httpx2.Client(base_url=server.url, headers={"Accept": "text/html,*/*"}, timeout=30) as client:
        yield client


@pytest.fixture
def built() -> Path:
    """The folder of the built page."""
    if not (DIST / "index.html").is_file():
        pytest.skip("the console is not built here: `make console` needs npm")

    return DIST


def test_a_browser_is_led_to_the_page(browser: httpx2.Client) -> None:
    """From the front of the server, and from the address without a slash; a program gets the plain front page."""
    front = browser.get("/")
    assert (front.status_code, front.headers["location"]) == (303, "console/")
    assert front.headers["vary"] == "Accept"
    bare = browser.get("/console")
    assert (bare.status_code, bare.headers["location"]) == (308, "console/")
    assert browser.get("/", headers={"Accept": "*/*"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/console/", "/console/sandboxes", "/console/sandboxes/a/b?x=1", "/share/0123456789abcdef"]
)
def test_every_address_of_the_page_is_the_page(browser: httpx2.Client, built: Path, path: str) -> None:
    """One document, and one for shares, under one policy, which allows nothing that is not a file of the page."""
    page = browser.get(path)
    assert page.status_code == 200
    document = "share.html" if path.startswith("/share/") else "index.html"
    assert page.content == (built / document).read_bytes()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers.get_list("content-security-policy") == [PAGE]
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cross-origin-resource-policy"] == "same-origin"
    assert page.headers["permissions-policy"].startswith("camera=(), microphone=(), geolocation=(), ")
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["x-dns-prefetch-control"] == "off"
    assert page.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]* src=\"/console/)|<style|\son[a-z]+=", page.text)


def test_assets_are_files_of_one_folder(browser: httpx2.Client, built: Path) -> None:
    """Each that the document names is there and may be kept; nothing else of the package is to be had."""
    document = (built / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', document)
    assert len(named) >= 3

    for path in named:
        asset = browser.get(path)
        assert asset.status_code == 200, path
        assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert asset.headers["content-security-policy"] == PAGE

    scripts = [path for path in named if path.endswith(".js")]
    assert browser.get(scripts[0]).headers["content-type"].startswith("text/javascript")

    for path in ("no.js", "..%2Findex.html", "..%2f..%2fpages.py", "x/y.js", "a%00b", "a%5c..%5cb"):
        assert browser.get(f"/console/assets/{path}").status_code == 404, path


def test_the_code_of_a_sandbox_is_named_with_the_page(browser: httpx2.Client, built: Path) -> None:
    """At the address of a sandbox alone; each file is there, and is what its view imports beside the page's own."""
    link = browser.get("/console/sandboxes/a").headers["link"]
    named = re.findall(r"<(/console/assets/[^>]+)>; rel=modulepreload; crossorigin(?:, |$)", link)
    assert len(named) == link.count("<") >= 2
    document = (built / "index.html").read_text()
    view = next(path for path in named if "/Sandbox-" in path)
    # What is loaded when it is wanted (`import()`) is not among them.
    imported = re.findall(r'(?:from|import)\s?"\./([^"]+\.js)"', browser.get(view).text)
    assert len(imported) >= 2
    assert [name for name in imported if f"/{name}" not in link and f"/{name}" not in document] == []

    for path in named:
        assert browser.get(path).status_code == 200, path
        assert path not in document

    for path in ("/console/", "/console/sandboxes", "/console/sandboxes/", "/console/sandboxes/a/compare"):
        assert "link" not in browser.get(path).headers, path


def test_the_page_is_small(built: Path) -> None:
    """What a first visit loads, compressed: at most 165 kB for either document, and 480 kB in all."""

    def packed(path: Path) -> int:
        return len(gzip.compress(path.read_bytes(), 9))

    for document in ("index.html", "share.html"):
        named = re.findall(r'(?:src|href)="/console/([^"]+)"', (built / document).read_text())
        assert sum(packed(built / path) for path in named) <= 165_000, document

    assert sum(packed(path) for path in (built / "assets").iterdir()) <= 480_000


def test_what_views_share_does_not_hang_on_a_document(built: Path) -> None:
    """A change of the console's entry renames no chunk of all views with cells, and a share loads nothing of it."""
    chunks = json.loads((built / "chunks.json").read_bytes())

    def reached(name: str) -> set[str]:
        found, left = {name}, [name]

        while left:
            each = chunks[left.pop()]
            new = {*each.get("imports", ()), *each.get("dynamicImports", ())} - found
            found |= new
            left += new

        return found

    shared = {name for name in chunks if re.match(r"_(base|widgets|cells)-.*\.js$", name)}
    assert len(shared) == 3
    assert [name for name in shared if "index.html" in reached(name)] == []
    share = reached("share.html")
    assert shared < share
    assert "index.html" not in share
    # The control: a view of the console does import its entry.
    assert "index.html" in reached("src/views/Sandbox.tsx")


def test_the_frames_have_policies_of_their_own(browser: httpx2.Client) -> None:
    """The same constant document twice: without a script but its own, and with scripts that have no network."""
    still, moving = browser.get("/console/frame"), browser.get("/console/frame?scripts")
    assert still.content == moving.content
    scripts = re.findall(r"<script>(.*?)</script>", still.text, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert still.headers.get_list("content-security-policy") == [STILL.format(digest=digest)]
    assert moving.headers.get_list("content-security-policy") == [MOVING]

    # The page of a share has one frame, which is still whatever is asked.
    for path in ("/share/frame", "/share/frame?scripts"):
        shared = browser.get(path)
        assert shared.content == still.content
        assert shared.headers.get_list("content-security-policy") == [STILL.format(digest=digest)]

    for frame in (still, moving):
        assert frame.headers["cache-control"] == "no-store"
        assert frame.headers["referrer-policy"] == "no-referrer"


def test_the_page_is_the_same_to_everybody(browser: httpx2.Client, server: Any) -> None:
    """Constants: a token changes nothing, and no other method is answered."""
    for path in ("/console/", "/console/frame", "/console/frame?scripts", "/console/assets/no.js"):
        stranger, owner = browser.get(path), browser.get(path, headers=server.headers)
        assert (stranger.status_code, len(stranger.content)) == (owner.status_code, len(owner.content)), path
        assert browser.post(path).status_code == 405, path
        assert browser.head(path).status_code == stranger.status_code, path


def test_the_console_can_be_left_out(tmp_path: Path) -> None:
    """By a setting, or by removing its folder: no route of it is there, and the front page is the plain one."""

    async def paths(**settings: Any) -> set[str]:
        given = ServerSettings(state_folder=str(tmp_path / "state"), pool_size=0, token="t" * 20, **settings)

        async with open_services(given) as services:
            app = create_app(services)
            return {getattr(route, "path", "") for route in app.routes} | {str(app.state.has_console)}

    assert {"/console/{path:path}", "True"} <= asyncio.run(paths())
    left = asyncio.run(paths(console=False))
    assert "False" in left
    assert [path for path in left if path.startswith(("/console", "/share"))] == []


def test_a_server_without_the_folder_starts(tmp_path: Path) -> None:
    """`rm -r` of the package takes the page away and nothing else; with it, nothing of it is loaded at the start."""
    shutil.copytree(
        ROOT / "src" / "fumehood",
        tmp_path / "fumehood",
        ignore=shutil.ignore_patterns("console", "__pycache__"),
    )
    program = (
        "import sys; from types import SimpleNamespace; from fumehood.server import app; "
        "found = app._console_routes(); print(app.__file__); print(len(found)); "
        "print(sorted(name for name in sys.modules if name.startswith('fumehood.console')))"
    )
    answers = []

    for folder in (tmp_path, ROOT / "src"):
        code = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT / 'src')!r}]; {program}"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, check=True
        )
        file, *rest = done.stdout.splitlines()
        assert Path(file).is_relative_to(folder)
        answers.append(rest)

    assert answers == [["0", "[]"], ["6", "['fumehood.console', 'fumehood.console.routes']"]]
