"""A real browser at a real server: what every test of the console starts from, and what fails each of them.

Debian's Chromium is driven by the Python package of playwright, which downloads no browser of its own. Each test has a
context of its own with a login; a page error, a violation of the page's policy or an answer from another host fails it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import PRELOAD, RunningServer

from .collectors import Collector

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "src" / "fumehood" / "console" / "dist"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
_FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
]
_SECONDS = 30
# In the page itself, not in the frames of guests, whose policies are there to be violated.
_WATCHED = """
if (window === window.top) {
  window.violations = [];
  addEventListener("securitypolicyviolation", (event) =>
    window.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
}
"""


@dataclass
class Faults:
    """What no test of the console may cause."""

    found: list[str] = field(default_factory=list)

    def watch(self, page: Any, host: str) -> None:
        """Notes what goes wrong in a page."""
        page.on("pageerror", lambda error: self.found.append(f"page error: {error}"))
        page.on("response", lambda answer: self._check_host(answer.url, host))

    def _check_host(self, url: str, host: str) -> None:
        parts = urlsplit(url)

        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host:
            self.found.append(f"answer from another host: {url}")


@pytest.fixture(scope="session")
def console_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose console is looked at."""
    if not (DIST / "index.html").is_file():
        pytest.skip("the console is not built here: `make console` needs npm")

    running = RunningServer(
        tmp_path_factory.mktemp("console") / "state",
        pool_size=1,
        max_network="listed",
        preload=PRELOAD,
        records="keep",
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for the tests of a file: as long as it is driven, its loop runs in this thread."""
    program = shutil.which("chromium")

    if program is None:
        pytest.skip("chromium is not installed: `apt-get install chromium fonts-dejavu-core`")

    sync_api = pytest.importorskip("playwright.sync_api")
    # Chromium's own sandbox refuses to run as root.
    flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else _FLAGS

    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def login(browser: Any, console_server: RunningServer) -> Any:
    """The state of a browser that has logged in: an address may try ten logins a minute."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{console_server.url}/console/")
    page.get_by_label("Token of the owner, or of a key").fill(console_server.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    state = context.storage_state()
    context.close()
    return state


NewPage = Callable[..., Any]


@pytest.fixture
def new_page(browser: Any, console_server: RunningServer, login: Any) -> Iterator[NewPage]:
    """Opens pages of browsers, logged in by default; what goes wrong in one fails the test.

    `refusing` names the directives whose violations are what the test is about, and `of` another server.
    """
    faults = Faults()
    contexts: list[Any] = []
    pages: list[tuple[Any, tuple[str, ...]]] = []

    def make(
        path: str | None = "/console/",
        *,
        logged_in: bool = True,
        refusing: tuple[str, ...] = (),
        of: RunningServer = console_server,
        **options: Any,
    ) -> Any:
        given = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
        context = browser.new_context(storage_state=login if logged_in else None, **given)
        context.set_default_timeout(_SECONDS * 1000)
        context.add_init_script(_WATCHED)
        contexts.append(context)
        page = context.new_page()
        faults.watch(page, urlsplit(of.url).netloc)
        pages.append((page, refusing))

        if path is not None:
            page.goto(of.url + path)

        return page

    yield make
    violations = [
        found
        for page, refusing in pages
        for found in page.evaluate("window.violations ?? []")
        if not found.startswith(refusing or "-")
    ]

    for context in contexts:
        context.close()

    assert faults.found == []
    assert violations == []


@pytest.fixture
def page(new_page: NewPage) -> Any:
    """The page of a browser that has logged in."""
    return new_page()


@pytest.fixture
def api(console_server: RunningServer) -> Iterator[httpx2.Client]:
    """Another client of the same server, with the owner's token."""
    with httpx2.Client(base_url=console_server.url, headers=console_server.headers, timeout=60) as client:
        yield client


@dataclass(frozen=True)
class Box:
    """A sandbox that another client uses while the page is looked at."""

    api: httpx2.Client
    id: str

    @property
    def address(self) -> str:
        """Where the page shows it."""
        return f"/console/sandboxes/{self.id}"

    def run(self, code: str, **given: Any) -> dict[str, Any]:
        """Runs code as a program does, and returns the execution."""
        answer = self.api.post(f"/v1/sandboxes/{self.id}/executions", json={"code": code, **given})
        assert answer.status_code == 200, answer.text
        execution: dict[str, Any] = answer.json()
        return execution

    def value(self, expression: str) -> str:
        """Returns the text of an expression, in the live context."""
        return str(self.run(expression)["text"])


@pytest.fixture
def box(api: httpx2.Client) -> Iterator[Box]:
    """A sandbox of the test's own."""
    answer = api.post("/v1/sandboxes", json={"metadata": {"test": "console"}})
    assert answer.status_code == 201, answer.text
    made = Box(api, answer.json()["id"])
    yield made
    api.delete(f"/v1/sandboxes/{made.id}")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """What listens outside."""
    with Collector() as made:
        yield made


def show(box: Box, mime: str, text: str) -> None:
    """Lets a cell show one format of a result, as it is."""
    box.run(
        f"from IPython.display import display\ndisplay({{{mime!r}: {text!r}, 'text/plain': 'x'}}, raw=True)"
    )


def guest(page: Any, number: int) -> Any:
    """Returns the document of a guest in a cell."""
    cell = page.get_by_role("article", name=f"Cell {number}", exact=True)
    cell.locator("iframe").wait_for()
    return cell.locator("iframe").content_frame


def connected(page: Any) -> None:
    """Waits until the terminal in view is connected; else says what the panel showed in its place."""
    try:
        page.get_by_text("connected", exact=True).wait_for()
    except Exception as error:
        shown = page.locator(".terminals, .panel-body").all_inner_texts()
        raise AssertionError(f"the terminal is not connected; the panel shows {shown!r}") from error


def settled(page: Any, seconds: float = 1.2) -> None:
    """Lets what was started arrive: its absence is what is to be seen, and the control shows how soon it would."""
    page.wait_for_timeout(seconds * 1000)


def axe_violations(page: Any) -> list[str]:
    """What axe finds wrong by WCAG 2.0 to 2.2, A and AA, in the page as it is now."""
    page.evaluate(AXE.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    # Frames of guests are theirs.
    found = page.evaluate(
        "(tags) => axe.run({exclude: [['iframe']]}, {runOnly: tags, iframes: false}).then((all) => all.violations)",
        tags,
    )
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]
