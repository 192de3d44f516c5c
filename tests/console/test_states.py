"""What the page says when the server, or the way to it, fails: unknown outcomes, waits, breaks of the live view."""

from __future__ import annotations

import re
from typing import Any

from tests.waiting import until

from .conftest import Box, NewPage, axe_violations

_BROKEN = "It is not known whether that happened"


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _type(page: Any, code: str) -> None:
    page.locator(".composer .cm-content").click()
    page.keyboard.insert_text(code)


def test_an_act_whose_answer_is_lost_is_looked_for(new_page: NewPage, box: Box) -> None:
    """The server has done it, and the connection breaks before it says so: nothing claims that it was not done."""
    page = new_page(box.address)
    page.get_by_text("Nothing ran here yet.").wait_for()

    def break_off(route: Any) -> None:
        route.fetch()
        route.abort("connectionreset")

    page.route(f"**/v1/sandboxes/{box.id}/executions", break_off)
    _type(page, "print('it ran')")
    page.keyboard.press("Shift+Enter")
    problem = page.get_by_role("alert").filter(has_text=_BROKEN)
    problem.wait_for()
    assert "look before you do it again" in problem.inner_text()
    assert "was not run" not in problem.inner_text()
    assert not problem.get_by_role("button", name="Try again").count()
    assert "print('it ran')" in page.locator(".composer .cm-content").inner_text()
    assert axe_violations(page) == []
    page.unroute(f"**/v1/sandboxes/{box.id}/executions")
    problem.get_by_role("button", name="Look whether it happened").click()
    page.get_by_text("It ran: it is cell 1.").wait_for()
    _cell(page, 1).get_by_text("it ran", exact=True).wait_for()
    # Once: nothing repeated it.
    assert box.api.get(f"/v1/sandboxes/{box.id}/contexts/default/executions").json()["items"][1:] == []


def test_a_question_counts_down_and_an_act_says_when(new_page: NewPage, box: Box) -> None:
    """A busy server names a time: a question is asked again by itself, an act by the person alone."""
    page = new_page(None)
    busy = {
        "status": 503,
        "headers": {"Retry-After": "2", "Content-Type": "application/problem+json"},
        "body": '{"status": 503, "code": "overloaded", "detail": "The server is busy.", "hint": "Try again later."}',
    }
    acts: list[str] = []

    def refuse(route: Any) -> None:
        acts.append(route.request.method)
        route.fulfill(**busy)

    page.route(f"**/v1/sandboxes/{box.id}", lambda route: route.fulfill(**busy))
    page.goto(str(box.api.base_url.join(box.address)))
    problem = page.get_by_role("alert").filter(has_text="The server is busy.")
    problem.get_by_text("Tries again in 2 s.").wait_for()
    problem.get_by_text("Tries again in 1 s.").wait_for()
    page.unroute(f"**/v1/sandboxes/{box.id}")
    page.get_by_text("Nothing ran here yet.").wait_for()

    page.route(f"**/v1/sandboxes/{box.id}/executions", refuse)
    _type(page, "1")
    page.keyboard.press("Shift+Enter")
    problem.get_by_text("You can try again in 2 s.").wait_for()
    problem.get_by_text("You can try again now.").wait_for()
    assert acts == ["POST"]
    assert axe_violations(page) == []


def test_a_break_of_the_socket_is_said_after_two_seconds(new_page: NewPage, box: Box) -> None:
    """Short ones are not worth a word; the bar has the time since when."""
    page = new_page(None)
    sockets: list[Any] = []
    is_open = [True]

    def connect(socket: Any) -> None:
        if is_open[0]:
            socket.connect_to_server()
            sockets.append(socket)
        else:
            socket.close()

    page.add_init_script(
        """
        new MutationObserver(() => {
          const bar = document.querySelector(".stale");
          if (bar && !window.bar) window.bar = performance.now();
        }).observe(document, {subtree: true, childList: true});
        """
    )
    page.route_web_socket("**/v1/watch", connect)
    page.goto(str(box.api.base_url.join(box.address)))
    page.get_by_text("Nothing ran here yet.").wait_for()
    until(lambda: page.wait_for_timeout(10) or sockets)
    is_open[0] = False
    page.evaluate("() => { window.broken = performance.now(); }")
    sockets.pop().close()
    bar = page.locator(".stale")
    bar.wait_for()
    assert re.search(r"interrupted since \d\d:\d\d:\d\d", bar.inner_text())
    assert page.evaluate("window.bar - window.broken") >= 2000
    is_open[0] = True
    bar.wait_for(state="detached")


def test_what_a_gap_hides_is_read_anew(new_page: NewPage, box: Box) -> None:
    """More happened than the server keeps for a page that is away: it says so, and the page has all in the end."""
    page = new_page(None)
    sockets: list[Any] = []
    heard: list[str] = []
    is_open = [True]

    def connect(socket: Any) -> None:
        if not is_open[0]:
            socket.close()
            return

        server = socket.connect_to_server()
        server.on_message(lambda message: heard.append(str(message)) or socket.send(message))
        sockets.append(socket)

    page.route_web_socket("**/v1/watch", connect)
    page.goto(str(box.api.base_url.join(box.address)))
    page.get_by_text("Nothing ran here yet.").wait_for()
    until(lambda: page.wait_for_timeout(10) or heard)
    is_open[0] = False
    sockets.pop().close()
    box.run("for number in range(3): print(str(number) * 1_000_000)")
    box.run("'the last'")
    is_open[0] = True
    until(lambda: page.wait_for_timeout(10) or any('"gap"' in each for each in heard))
    _cell(page, 2).locator(".result").get_by_text("'the last'").wait_for()
    _cell(page, 1).get_by_text("ok").wait_for()


def test_a_record_that_is_full_says_what_is_missing(new_page: NewPage, box: Box) -> None:
    """The oldest cells go first: how many is said, and the newest are there."""
    for number in range(20):
        box.run(f"{number}  # {'x' * 900_000}")

    page = new_page(box.address)
    note = page.get_by_text("The record is bounded")
    note.wait_for()
    assert re.search(r"[1-9]\d* older cells are missing", note.inner_text())
    page.locator(".result").get_by_text("19", exact=True).wait_for()
