"""How soon the page of the console shows what others do, in Debian's chromium at a real server.

In the measuring process, by name alone: it needs a browser and the clients of other projects, and figures beside other
work are pessimistic. A bare page on the same socket, in the same moments, says how much of it is not the page's doing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection, Place
from fumehood_bench.server_process import serving

_CELLS = 30
_SHARES = 10
_LOOKS = 100
_PRINT = "import time\nprint('{mark}', time.time(), flush=True)"
# Puts down when a text is first in the document.
_SEES = """
(mark) => { window.seen = null;
  new MutationObserver((_, observer) => {
    if (!document.body.textContent.includes(mark)) return;
    window.seen = Date.now() / 1000;
    observer.disconnect();
  }).observe(document.body, {subtree: true, childList: true, characterData: true}); }
"""
# The same socket as the page's, and nothing else: when a text has arrived.
_LISTENS = """
(id) => new Promise((done) => {
  const socket = new WebSocket(`ws://${location.host}/v1/watch`, ["fumehood.watch"]);
  window.texts = [];
  socket.onopen = () => socket.send(JSON.stringify({op: "follow", id: 1, what: "sandbox", sandbox_id: id}));
  socket.onmessage = ({data}) => { window.texts.push([Date.now() / 1000, data]); done(); };
})
"""
_ARRIVED = "(mark) => (window.texts.find(([, text]) => text.includes(mark)) ?? [null])[0]"
# Displays, clearings, frames, lines and values without end or measure; each is one cell.
_HOSTILE = (
    "from IPython.display import clear_output, display\n"
    "for i in range(3_000):\n    print('cleared', i)\n    clear_output()\n"
    "handle = display('first', display_id='<b>id')\nfor i in range(3_000): handle.update(f'update {i}')",
    "print('x' * 1_000_000)\nfor i in range(20_000): print('\\x1b[31m\\u202e', i, '\\r' * 50)",
    "from IPython.display import display\ndeep = 1\nfor _ in range(300): deep = [deep]\n"
    "display({'application/json': [deep, list(range(50_000))], 'text/plain': 'x'}, raw=True)",
    "from IPython.display import HTML, display\n"
    "display(HTML('<table>' + '<tr><td><img src=x onerror=top.ran=1>' * 5_000 + '</table>'))",
    "from IPython.display import display\n"
    "display({'text/markdown': '> ' * 9_000 + '[x](javascript:top.ran=1)', 'text/plain': 'x'}, raw=True)",
)


def measure(plan: Plan) -> Iterator[Figure]:
    """Cells of other clients, a share that is revoked, and answers beside hostile outputs."""
    from playwright.sync_api import sync_playwright

    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]

    with serving() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        scene = _Scene(browser, server.place)

        for name, client in (("SDK", _sdk), ("MCP", _mcp), ("E2B", _e2b)):
            with ExitStack() as stack:
                box, run = client(server.place, stack)
                pairs = scene.cells(box, run, plan.repetitions(_CELLS))
                yield _figure(f"a print by a client of {name}, until it is on the page", 300.0, pairs)

        pairs = [scene.revoked() for _ in range(plan.repetitions(_SHARES))]
        yield _figure("a revoked share, until its page says so", 2000.0, pairs, "the request that revokes it")
        pairs = scene.answers(plan.repetitions(_LOOKS))
        yield _figure("an answer of the page beside hostile outputs", 100.0, pairs, "a bare page meanwhile")
        browser.close()


def _figure(
    name: str, target: float, pairs: list[tuple[float, float]], floor: str = "a bare page on the same socket"
) -> Figure:
    ours, bare = [sorted(seconds) for seconds in zip(*pairs, strict=True)]
    return Figure(
        name=f"{name}: p95",
        unit="ms",
        ours=_p95(ours) * 1e3,
        samples=len(ours),
        target=target,
        floor=_p95(bare) * 1e3,
        floor_name=floor,
        note=f"p50 {median(ours) * 1e3:.0f} ms, of the floor {median(bare) * 1e3:.0f} ms",
    )


def _p95(seconds: list[float]) -> float:
    return quantiles(seconds, n=20, method="inclusive")[-1]


class _Scene:
    """A browser that is logged in, and a program beside it."""

    def __init__(self, browser: Any, place: Place) -> None:
        self._browser, self._place = browser, place
        self._url = f"http://{place.host}:{place.port}"
        page = browser.new_context().new_page()
        page.goto(f"{self._url}/console/")
        page.get_by_label("Token of the owner, or of a key").fill(place.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Sandboxes").wait_for()
        self._state = page.context.storage_state()
        page.context.close()

    def cells(self, box: str, run: Callable[[str], object], count: int) -> list[tuple[float, float]]:
        """Seconds from each print of a client to the page, and to a bare page."""
        page, bare = self._page(f"/console/sandboxes/{box}"), self._page("/v1/health")
        page.get_by_role("textbox", name="Code to run").wait_for()
        bare.evaluate(_LISTENS, box)
        pairs = []

        for number in range(count):
            # It is not in the code as it is written, which is shown as well.
            mark = f"seen{number}."
            page.evaluate(_SEES, mark)
            page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
            run(_PRINT.format(mark=f"seen{number}' '."))
            page.wait_for_function("() => window.seen !== null")
            bare.wait_for_function(_ARRIVED, arg=mark)
            line = page.locator(".line").filter(has_text=mark).first.inner_text()
            printed = float(line.split()[1])
            pairs.append((page.evaluate("window.seen") - printed, bare.evaluate(_ARRIVED, mark) - printed))

        page.context.close()
        bare.context.close()
        return pairs

    def revoked(self) -> tuple[float, float]:
        """Seconds from the request that revokes a share, to its page and to the answer."""
        box = self._ask("POST", "/v1/sandboxes", {}, 201)["id"]
        made = self._ask("POST", "/v1/shares", {"sandbox_id": box, "shows": ["record"]}, 201)
        self._ask("POST", f"/v1/sandboxes/{box}/executions", {"code": "6 * 7"}, 200)
        page = self._page(f"/share/{made['share']['id']}#{made['secret']}")
        page.get_by_role("article").first.wait_for()
        page.evaluate(_SEES, "This share has ended.")
        begun = time.time()
        self._remove(f"/v1/shares/{made['share']['id']}")
        answered = time.time() - begun
        page.wait_for_function("() => window.seen !== null")
        seen = page.evaluate("window.seen") - begun
        page.context.close()
        self._remove(f"/v1/sandboxes/{box}")
        return seen, answered

    def answers(self, count: int) -> list[tuple[float, float]]:
        """Seconds of a question to the page while hostile cells run, and to a bare page, in turn."""
        box = self._ask("POST", "/v1/sandboxes", {"timeout_seconds": 3600}, 201)["id"]
        page, bare = self._page(f"/console/sandboxes/{box}"), self._page("/v1/health")
        page.get_by_role("textbox", name="Code to run").wait_for()
        is_over = threading.Event()

        def attack() -> None:
            with Connection(self._place) as connection:
                while not is_over.is_set():
                    for code in _HOSTILE:
                        path = f"/v1/sandboxes/{box}/executions"
                        connection.ask(self._place.request("POST", path, {"code": code})).json()

        running = threading.Thread(target=attack)
        running.start()
        page.get_by_role("article").first.wait_for()
        pairs = []

        for _ in range(count):
            pairs.append((_answered(page), _answered(bare)))
            page.wait_for_timeout(50)

        is_over.set()
        running.join()
        return pairs

    def _page(self, path: str) -> Any:
        context = self._browser.new_context(
            storage_state=self._state, viewport={"width": 1280, "height": 800}
        )
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(self._url + path)
        return page

    def _ask(self, method: str, path: str, body: object, status: int) -> Any:
        # The server closes connections that have nothing to do for a while.
        with Connection(self._place) as connection:
            return connection.ask(self._place.request(method, path, body)).json(status)

    def _remove(self, path: str) -> None:
        with Connection(self._place) as connection:
            assert connection.ask(self._place.request("DELETE", path)).status == 204, path


def _answered(page: Any) -> float:
    begun = time.perf_counter()
    page.evaluate("1")
    return time.perf_counter() - begun


_Client = tuple[str, Callable[[str], object]]


def _sdk(place: Place, stack: ExitStack) -> _Client:
    from fumehood import Sandbox

    sandbox = stack.enter_context(Sandbox(url=f"http://{place.host}:{place.port}", api_key=place.token))
    return sandbox.id, sandbox.run_code


def _e2b(place: Place, stack: ExitStack) -> _Client:
    from e2b_code_interpreter import Sandbox  # type: ignore[import-untyped]

    url = f"http://{place.host}:{place.port}"
    # Where it is, the clients of E2B take from the environment.
    os.environ.update(E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=place.token)
    sandbox = Sandbox.create(timeout=600)
    stack.callback(sandbox.kill)
    return sandbox.sandbox_id, sandbox.run_code


def _mcp(place: Place, stack: ExitStack) -> _Client:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(loop.call_soon_threadsafe, loop.stop)

    async def call(tool: str, given: dict[str, object]) -> Any:
        headers = {"Authorization": f"Bearer {place.token}"}
        url = f"http://{place.host}:{place.port}/mcp"

        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            async with Client(streamable_http_client(url, http_client=http)) as client:
                result = await client.call_tool(tool, given)
                assert not result.is_error, result
                return result.structured_content

    def use(tool: str, **given: object) -> Any:
        return asyncio.run_coroutine_threadsafe(call(tool, given), loop).result()

    box = use("run_code", code="1")["sandbox_id"]
    return box, lambda code: use("run_code", code=code, sandbox_id=box)
