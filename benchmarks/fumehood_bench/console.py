"""What the page of the console takes, in Debian's chromium at a real server.

Long records and many sandboxes are one that is real, repeated on the way to the browser: what is measured is the page.
Only by name: it needs a browser, and figures beside other work are pessimistic.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection, Place
from fumehood_bench.server_process import ServerProcess, serving

_ROUNDS = 50
_CELLS = 10_000
_SANDBOXES = 500
_LINES = 100_000
_TICKS = 5
_PRINT = f"for number in range({_LINES}): print('line', number)\nprint('the last')"
# The longest time between two frames of the page.
_FRAMES = """
window.longest = 0;
let last = performance.now();
const look = (now) => {
  window.longest = Math.max(window.longest, now - last);
  last = now;
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


def measure(plan: Plan) -> Iterator[Figure]:
    """A cold load, a long record, many sandboxes, and much output."""
    from playwright.sync_api import sync_playwright

    flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    rounds = plan.repetitions(_ROUNDS) // 10

    with serving() as server, server.connect() as connection, sync_playwright() as playwright:
        place = server.place
        limits = {"stdout_bytes": 64 << 20}
        wanted = {"timeout_seconds": 3600, "limits": limits}
        box = connection.ask(place.request("POST", "/v1/sandboxes", wanted)).json(201)["id"]
        connection.ask(place.request("POST", f"/v1/sandboxes/{box}/executions", {"code": "6 * 7"})).json()
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=flags)
        state = _login(browser, place)

        def fresh() -> Any:
            page = browser.new_context(
                storage_state=state, viewport={"width": 1280, "height": 800}
            ).new_page()
            page.set_default_timeout(60_000)
            return page

        yield _taken(
            "cold load until the list can be used", 1.0, [_cold(fresh(), place) for _ in range(rounds)]
        )
        yield _taken(
            f"{_CELLS:,} cells: until the newest is seen",
            1.0,
            [_long(fresh(), place, box) for _ in range(rounds)],
        )
        ticks = [_tick(fresh(), place) for _ in range(max(1, rounds // 2))]
        yield Figure(
            name=f"{_SANDBOXES} sandboxes, a fifth of them changed: the page's thread, a tick",
            unit="ms",
            ours=median(ticks),
            samples=len(ticks) * _TICKS,
            target=50.0,
        )
        shown = [_printed(fresh(), server, box) for _ in range(max(1, rounds // 2))]
        yield _taken(f"{_LINES:,} lines, from the run to its end on the page", 2.0, [one for one, _ in shown])
        yield Figure(
            name=f"{_LINES:,} lines: longest frame",
            unit="ms",
            ours=median(frame for _, frame in shown),
            samples=len(shown),
            target=100.0,
        )
        browser.close()


def _taken(name: str, target: float, seconds: list[float]) -> Figure:
    return Figure(name=name, unit="s", ours=median(seconds), samples=len(seconds), target=target)


def _address(place: Place) -> str:
    return f"http://{place.host}:{place.port}/console"


def _login(browser: Any, place: Place) -> Any:
    page = browser.new_context().new_page()
    page.goto(f"{_address(place)}/")
    page.get_by_label("Token of the owner, or of a key").fill(place.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    return page.context.storage_state()


def _closing(measured: Callable[..., Any]) -> Callable[..., Any]:
    def run(page: Any, *given: Any) -> Any:
        try:
            return measured(page, *given)
        finally:
            page.context.close()

    return run


@_closing
def _cold(page: Any, place: Place) -> float:
    begun = time.perf_counter()
    page.goto(f"{_address(place)}/sandboxes")
    page.get_by_role("row").nth(1).wait_for()
    return time.perf_counter() - begun


@_closing
def _long(page: Any, place: Place, box: str) -> float:
    def answer(route: Any) -> None:
        real = json.loads(route.fetch().text())
        query = parse_qs(urlsplit(route.request.url).query)
        end = int(query.get("before", [str(_CELLS)])[0])
        first = max(0, end - int(query["limit"][0]))
        cells = [
            {**real["items"][0], "position": at, "id": f"cell-{at}", "results": []}
            for at in range(first, end)
        ]
        route.fulfill(json={**real, "items": cells, "first_position": 0, "end_position": _CELLS})

    page.route("**/contexts/default/executions?*", answer)
    begun = time.perf_counter()
    page.goto(f"{_address(place)}/sandboxes/{box}")
    page.get_by_role("article", name=f"Cell {_CELLS}", exact=True).wait_for()
    return time.perf_counter() - begun


@_closing
def _tick(page: Any, place: Place) -> float:
    count = 0

    def answer(route: Any) -> None:
        nonlocal count
        count += 1
        real = json.loads(route.fetch().text())["items"][0]
        items = [
            {**real, "id": f"{real['id']}{at}", "use": {**real["use"], "cells": count if at % 5 == 0 else 1}}
            for at in range(_SANDBOXES)
        ]
        route.fulfill(json={"items": items, "next_cursor": None})

    page.route("**/v1/sandboxes?*", answer)
    page.goto(f"{_address(place)}/sandboxes")
    page.get_by_role("row").nth(5).wait_for()
    client = page.context.new_cdp_session(page)
    # CPU time of the page's thread: other work on the machine does not count.
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        found = client.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    begun, ticks = busy(), count

    # The list is asked for again each five seconds.
    while count < ticks + _TICKS:
        page.wait_for_timeout(200)

    page.wait_for_timeout(200)
    return (busy() - begun) / _TICKS * 1e3


@_closing
def _printed(page: Any, server: ServerProcess, box: str) -> tuple[float, float]:
    place = server.place
    page.goto(f"{_address(place)}/sandboxes/{box}")
    page.get_by_role("article").first.wait_for()
    before = page.get_by_role("status").filter(has_text="Cell").first.inner_text()
    page.evaluate(_FRAMES)

    def run() -> None:
        with Connection(place) as connection:
            connection.ask(place.request("POST", f"/v1/sandboxes/{box}/executions", {"code": _PRINT}))

    running = threading.Thread(target=run)
    begun = time.perf_counter()
    running.start()
    page.wait_for_function(
        "(before) => [...document.querySelectorAll('[role=status]')].some((each) =>"
        " /^Cell .* finished/.test(each.textContent) && each.textContent !== before)",
        arg=before,
    )
    page.get_by_text("the last", exact=True).first.wait_for()
    took = time.perf_counter() - begun
    running.join()
    return took, float(page.evaluate("window.longest"))
