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
# What a trace tells of the tasks of a page's thread, with the CPU time of each.
_TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline", "toplevel"]
# What a page without a program does with an answer.
_KEPT = """
async (path) => {
  const answer = await fetch(path, {headers: {"X-Fumehood-Console": "1"}});
  window.kept = await answer.json();
}
"""
_WRITTEN = """
async (path) => {
  const answer = await fetch(path, {headers: {"X-Fumehood-Console": "1"}});
  for (const item of (await answer.json()).items) {
    const made = document.createElement("article");
    made.textContent = item.code ?? item.id;
    document.body.append(made);
  }
}
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

        listed, cells = "/v1/sandboxes?with=use", f"/v1/sandboxes/{box}/contexts/default/executions?limit=100"
        # In turn, so that what else the machine does weighs on both alike.
        cold = [(_cold(fresh(), place), _bare(fresh(), place, listed)) for _ in range(rounds)]
        yield _taken("cold load until the list can be used", 1.0, cold)
        long = [(_long(fresh(), place, box), _bare(fresh(), place, cells)) for _ in range(rounds)]
        yield _taken(
            f"{_CELLS:,} cells: until the newest is seen", 1.0, [(took, bare) for (took, _), bare in long]
        )
        yield Figure(
            name=f"{_CELLS:,} cells: CPU of the page's thread until the newest is seen",
            unit="ms",
            ours=median(thread for (_, thread), _ in long) * 1e3,
            samples=len(long),
            target=500.0,
        )
        ticks = [(_tick(fresh(), place), _parsed(fresh(), place)) for _ in range(max(1, rounds // 2))]
        yield Figure(
            name=f"{_SANDBOXES} sandboxes, a fifth of them changed: the page's thread, a tick",
            unit="ms",
            ours=median(ours for ours, _ in ticks),
            samples=len(ticks) * _TICKS,
            target=50.0,
            floor=median(bare for _, bare in ticks),
            floor_name="a bare page that reads the same answer",
        )
        shown = [_printed(fresh(), server, box) for _ in range(max(1, rounds // 2))]
        yield Figure(
            name=f"{_LINES:,} lines, from the run to its end on the page",
            unit="s",
            ours=median(one for one, _ in shown),
            samples=len(shown),
            target=2.0,
        )
        yield Figure(
            name=f"{_LINES:,} lines: CPU of the longest task of the page's thread, which a frame waits for",
            unit="ms",
            ours=median(task for _, task in shown),
            samples=len(shown),
            target=100.0,
        )
        browser.close()


def _taken(name: str, target: float, seconds: list[tuple[float, float]]) -> Figure:
    return Figure(
        name=name,
        unit="s",
        ours=median(ours for ours, _ in seconds),
        samples=len(seconds),
        target=target,
        floor=median(bare for _, bare in seconds),
        floor_name="a bare page that shows the same answer",
    )


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
            page.unroute_all(behavior="ignoreErrors")
            page.context.close()

    return run


@_closing
def _cold(page: Any, place: Place) -> float:
    begun = time.perf_counter()
    page.goto(f"{_address(place)}/sandboxes")
    page.get_by_role("row").nth(1).wait_for()
    return time.perf_counter() - begun


@_closing
def _bare(page: Any, place: Place, path: str) -> float:
    """A page of this server without any program, which asks once and writes each item into an element."""
    if "/executions" in path:
        page.route("**/contexts/default/executions?*", _cells)

    begun = time.perf_counter()
    page.goto(f"http://{place.host}:{place.port}/v1/health")
    page.evaluate(_WRITTEN, path)
    page.get_by_role("article").last.wait_for()
    return time.perf_counter() - begun


@_closing
def _long(page: Any, place: Place, box: str) -> tuple[float, float]:
    page.route("**/contexts/default/executions?*", _cells)
    busy = _busy(page)
    begun = time.perf_counter()
    page.goto(f"{_address(place)}/sandboxes/{box}")
    page.get_by_role("article", name=f"Cell {_CELLS}", exact=True).wait_for()
    # Of the thread of this page alone: the navigation may have begun a process of its own.
    return time.perf_counter() - begun, busy()


def _cells(route: Any) -> None:
    real = json.loads(route.fetch().text())
    query = parse_qs(urlsplit(route.request.url).query)
    end = int(query.get("before", [str(_CELLS)])[0])
    first = max(0, end - int(query["limit"][0]))
    cells = [
        {**real["items"][0], "position": at, "id": f"cell-{at}", "results": []} for at in range(first, end)
    ]
    route.fulfill(json={**real, "items": cells, "first_position": 0, "end_position": _CELLS})


@_closing
def _tick(page: Any, place: Place) -> float:
    count = [0]
    page.route("**/v1/sandboxes?*", lambda route: _sandboxes(route, count))
    page.goto(f"{_address(place)}/sandboxes")
    page.get_by_role("row").nth(5).wait_for()
    busy = _busy(page)
    begun, ticks = busy(), count[0]

    # The list is asked for again each five seconds.
    while count[0] < ticks + _TICKS:
        page.wait_for_timeout(200)

    page.wait_for_timeout(200)
    return (busy() - begun) / _TICKS * 1e3


@_closing
def _parsed(page: Any, place: Place) -> float:
    """Milliseconds of a bare page's thread for the same answer, read and kept."""
    count = [0]
    page.route("**/v1/sandboxes?*", lambda route: _sandboxes(route, count))
    page.goto(f"http://{place.host}:{place.port}/v1/health")
    busy = _busy(page)
    begun = busy()

    for _ in range(_TICKS):
        page.evaluate(_KEPT, "/v1/sandboxes?with=use&limit=1000")

    page.wait_for_timeout(200)
    return (busy() - begun) / _TICKS * 1e3


def _sandboxes(route: Any, count: list[int]) -> None:
    count[0] += 1
    real = json.loads(route.fetch().text())["items"][0]
    items = [
        {**real, "id": f"{real['id']}{at}", "use": {**real["use"], "cells": count[0] if at % 5 == 0 else 1}}
        for at in range(_SANDBOXES)
    ]
    route.fulfill(json={"items": items, "next_cursor": None})


def _busy(page: Any) -> Callable[[], float]:
    """Gives the CPU seconds of the page's thread: other work on the machine does not count."""
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        found = client.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    return busy


@_closing
def _printed(page: Any, server: ServerProcess, box: str) -> tuple[float, float]:
    place = server.place
    page.goto(f"{_address(place)}/sandboxes/{box}")
    page.get_by_role("article").first.wait_for()
    # The editor is part of the load.
    page.get_by_role("textbox", name="Code to run").wait_for()
    before = page.get_by_role("status").filter(has_text="Cell").first.inner_text()
    page.context.browser.start_tracing(page=page, categories=_TRACED)

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
    return took, _longest_task(json.loads(page.context.browser.stop_tracing())["traceEvents"])


def _longest_task(events: list[dict[str, Any]]) -> float:
    """Milliseconds of CPU of the longest task: how long it waited for a processor is not the page's doing."""
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"].get("name") == "CrRendererMain"
    }
    tasks = [
        each["tdur"] / 1e3
        for each in events
        if each["name"] == "RunTask" and "tdur" in each and (each["pid"], each["tid"]) in threads
    ]
    assert len(tasks) > _LINES // 1000, "the trace has the tasks of the page"
    return float(max(tasks))
