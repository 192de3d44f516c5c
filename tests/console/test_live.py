"""What happens while the page is looked at: cells of others as they run, a reload, a socket that breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.waiting import until

from .conftest import Box, NewPage, axe_violations

pytestmark = pytest.mark.timeout(180)

_TICKS = "import time\nfor i in range({count}):\n    print('tick', i)\n    time.sleep({seconds})"


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _detach(box: Box, code: str) -> str:
    answer = box.api.post(f"/v1/sandboxes/{box.id}/executions", json={"code": code, "detached": True})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["execution_id"])


def _lines(cell: Any) -> list[str]:
    return [line.strip() for line in cell.locator(".line").all_inner_texts()]


def test_a_reload_ends_nothing_and_loses_nothing(new_page: NewPage, box: Box) -> None:
    """A cell of the page runs on while the page is loaded anew, and its output is whole, once and in order."""
    page = new_page(box.address)
    page.get_by_role("textbox", name="Code to run").click()
    page.keyboard.insert_text(_TICKS.format(count=30, seconds=0.1))
    page.keyboard.press("Shift+Enter")
    _cell(page, 1).get_by_text("tick 3", exact=True).wait_for()
    page.reload()
    _cell(page, 1).get_by_text("running").wait_for()
    _cell(page, 1).get_by_text("ok").wait_for()
    assert _lines(_cell(page, 1)) == [f"tick {number}" for number in range(30)]


def test_cells_of_every_client_appear_with_who_ran_them(
    new_page: NewPage, box: Box, console_server: Any
) -> None:
    """Over the native API and over MCP: while they run, each with its dialect and key; the two streams in order."""
    page = new_page(box.address)
    page.get_by_text("Nothing ran here yet.").wait_for()
    _detach(
        box,
        _TICKS.format(count=8, seconds=0.01)
        + "\nimport os\nwhile not os.path.exists('go'): time.sleep(0.02)",
    )
    _cell(page, 1).get_by_text("tick 1", exact=True).wait_for()
    assert _cell(page, 1).get_by_text("running").is_visible()
    box.api.put(f"/v1/sandboxes/{box.id}/files/content", params={"path": "/home/user/go"}, content=b"")
    _cell(page, 1).get_by_text("ok").wait_for()
    assert _lines(_cell(page, 1)) == [f"tick {number}" for number in range(8)]

    made = box.api.post("/v1/keys", json={"name": "a colleague"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}

    with httpx2.Client(base_url=console_server.url, headers=headers, timeout=60) as other:
        theirs = Box(other, other.post("/v1/sandboxes", json={}).json()["id"])
        page.goto(console_server.url + theirs.address)
        page.get_by_text("Nothing ran here yet.").wait_for()
        theirs.run("print('by a key')")
        _cell(page, 1).get_by_text("by a key", exact=True).wait_for()
        assert re.search(r"key .+ · API", _cell(page, 1).locator(".who").inner_text())
        other.delete(f"/v1/sandboxes/{theirs.id}")

    box.api.delete(f"/v1/keys/{made['key']['id']}")


def test_a_socket_that_breaks_is_said_and_comes_back(new_page: NewPage, box: Box) -> None:
    """Meanwhile the page asks by itself; afterwards it has what it missed, once."""
    page = new_page(None)
    sockets: list[Any] = []
    is_open = [True]

    def connect(socket: Any) -> None:
        if not is_open[0]:
            socket.close()
            return

        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket("**/v1/watch", connect)
    page.goto(str(box.api.base_url.join(box.address)))
    page.get_by_text("Nothing ran here yet.").wait_for()
    _detach(box, _TICKS.format(count=25, seconds=0.1))
    _cell(page, 1).get_by_text("tick 2", exact=True).wait_for()
    is_open[0] = False

    for socket in sockets:
        socket.close()

    page.get_by_text("The live view is interrupted").wait_for()
    box.run("'while it was away'")
    _cell(page, 2).locator(".result").get_by_text("'while it was away'").wait_for()
    is_open[0] = True
    page.get_by_text("The live view is interrupted").wait_for(state="detached", timeout=30_000)
    box.run("'after it came back'")
    _cell(page, 3).locator(".result").get_by_text("'after it came back'").wait_for()
    assert _lines(_cell(page, 1)) == [f"tick {number}" for number in range(25)]


def test_what_begins_before_the_watch_is_seen(new_page: NewPage, box: Box) -> None:
    """Between the first look and the first event: a cell appears, and its output is whole while it runs."""
    page = new_page(None)
    held: list[tuple[Any, Any]] = []

    def connect(socket: Any) -> None:
        server = socket.connect_to_server()
        socket.on_message(lambda message: held.append((server, message)))

    page.route_web_socket("**/v1/watch", connect)
    page.goto(str(box.api.base_url.join(box.address)))
    page.get_by_text("Nothing ran here yet.").wait_for()
    _detach(box, f"{_TICKS.format(count=3, seconds=0.01)}\nwhile True: time.sleep(0.02)")
    until(lambda: box.api.get(f"/v1/sandboxes/{box.id}/contexts/default/executions").json()["items"])
    until(lambda: page.wait_for_timeout(10) or held)

    for server, message in held:
        server.send(message)

    _cell(page, 1).get_by_text("tick 2", exact=True).wait_for()
    assert _cell(page, 1).get_by_text("running").is_visible()


def test_cleared_results_are_gone(new_page: NewPage, box: Box) -> None:
    """While the cell runs and afterwards: at once, or with what follows where the code waits; printed lines stay."""
    page = new_page(box.address)
    page.get_by_text("Nothing ran here yet.").wait_for()
    _detach(
        box,
        "import os, time\nfrom IPython.display import clear_output, display\nprint('printed')\ndisplay('first')\n"
        "while not os.path.exists('seen'): time.sleep(0.02)\nclear_output()\ndisplay('second')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nclear_output(wait=True)\ndisplay('third')",
    )
    results = _cell(page, 1).locator(".result")

    for shown, name in (("first", "seen"), ("second", "go"), ("third", None)):
        until(lambda shown=shown: [shown in each for each in results.all_inner_texts()] == [True], shown)

        if name is not None:
            path = f"/v1/sandboxes/{box.id}/files/content"
            box.api.put(path, params={"path": f"/home/user/{name}"}, content=b"")

    _cell(page, 1).get_by_text("ok").wait_for()
    assert _lines(_cell(page, 1)) == ["printed"]


@pytest.mark.serial
def test_a_flood_stays_smooth_enough_to_be_read(new_page: NewPage, box: Box) -> None:
    """Of 20,000 lines only those in view exist; the page answers meanwhile, and the last line is there."""
    page = new_page(box.address)
    page.get_by_text("Nothing ran here yet.").wait_for()
    execution_id = _detach(box, "for i in range(20000): print('line', i)")
    cell = _cell(page, 1)
    cell.get_by_text("ok").wait_for()
    cell.get_by_text("20,000 lines").wait_for()
    cell.get_by_text("line 19999", exact=True).wait_for()
    assert cell.locator(".line").count() < 200
    got = box.api.get(f"/v1/sandboxes/{box.id}/executions/{execution_id}").json()
    assert got["output_characters"] == sum(len(f"line {number}\n") for number in range(20_000))


def test_variables_are_there_without_a_look_inside(new_page: NewPage, box: Box) -> None:
    """Name, type, size and since when, as they change; a frame with its first rows; no code of an object runs."""
    page = new_page(f"{box.address}?panel=variables")
    page.get_by_text("Nothing ran here yet.").wait_for()
    box.run(
        "import pandas as pd\nframe = pd.DataFrame({'city': ['Berlin', 'Rome'], 'heat': [3, 1]})\n"
        "class Spy:\n    def __repr__(self): open('seen', 'w'); return 'x'\nspy, total = Spy(), 30",
        tell_changes=True,
    )
    table = page.locator("table.variables")
    row = table.get_by_role("row").filter(has_text="total")
    row.wait_for()
    assert row.get_by_role("cell").all_inner_texts()[:2] == ["total", "int"]
    box.run("total += 1", tell_changes=True)
    row.get_by_role("button", name="[2]").wait_for()
    table.get_by_role("button", name="frame").click()
    page.get_by_role("region", name="Variable frame").get_by_role("cell", name="Berlin").wait_for()
    assert axe_violations(page) == []
    assert box.value("__import__('os').path.exists('seen')") == "False"
    page.get_by_label("Filter variables").fill("tot")
    table.get_by_role("button", name="frame").wait_for(state="detached")


_PLACEHOLDERS = """
new MutationObserver(() => {
  if (document.querySelector(".skeleton") && !document.querySelector(".sandbox-page")) window.waited = true;
}).observe(document, {subtree: true, childList: true});
"""


def _pumped(page: Any, found: Any) -> Any:
    """Returns `found`, or lets playwright handle events of the page for 10 ms."""
    return found or page.wait_for_timeout(10)


def _adder(found: list[Any], part: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Returns a handler of one argument, which playwright needs, that adds a part of each event to a list."""
    return lambda event: found.append(part(event))


def test_a_view_that_has_come_is_shown_without_a_placeholder(new_page: NewPage, box: Box) -> None:
    """React keeps a placeholder for 300 ms: none is shown where code and newest cells are there before the login.

    The control is a page whose cells are answered after that.
    """
    box.run("6 * 7")

    wanted = {
        True: ("/console/assets/Sandbox-", f"/v1/sandboxes/{box.id}", "/executions?limit=100"),
        False: ("/v1/me",),
    }

    for is_early, names in wanted.items():
        page = new_page(None)
        page.add_init_script(_PLACEHOLDERS)
        arrived: list[str] = []
        held: list[Any] = []
        page.on("response", _adder(arrived, lambda answer: answer.url))
        page.route("**/v1/me" if is_early else f"**/v1/sandboxes/{box.id}", _adder(held, lambda route: route))
        page.goto(str(box.api.base_url.join(box.address)), wait_until="commit")

        for name in names:
            until(
                lambda page=page, name=name, urls=arrived: _pumped(page, any(name in url for url in urls)),
                name,
            )

        until(lambda page=page, held=held: _pumped(page, held), "the request that is held back")
        # The code that has come has run, and what the page shows by now is painted.
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
        held.pop(0).continue_()
        _cell(page, 1).wait_for()
        assert page.evaluate("window.waited ?? false") is not is_early
