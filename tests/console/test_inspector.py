"""Terminals, the network and exact numbers: what a guest writes there acts on nothing but its own pane."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from tests.waiting import until

from .conftest import Box, NewPage, axe_violations, connected, show

pytestmark = pytest.mark.timeout(180)
_CANARIES = """
window.taken = [];
navigator.clipboard.writeText = (text) => { window.taken.push(`clipboard ${text}`); return Promise.resolve(); };
window.open = (address) => { window.taken.push(`window ${address}`); return null; };
"""


@pytest.fixture
def guarded(api: httpx2.Client) -> Iterator[Box]:
    """A sandbox that may reach one host."""
    answer = api.post(
        "/v1/sandboxes", json={"network": {"allow": ["allowed.example"], "deny": ["no.example"]}}
    )
    assert answer.status_code == 201, answer.text
    made = Box(api, answer.json()["id"])
    yield made
    api.delete(f"/v1/sandboxes/{made.id}")


def _picture(page: Any, name: str) -> None:
    # For the developer's own eyes: pictures are kept where a folder is named.
    if folder := os.environ.get("CONSOLE_PICTURES"):
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.screenshot(path=f"{folder}/{name}-{theme}.png")


def _type(page: Any, line: str) -> None:
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.insert_text(line)
    page.keyboard.press("Enter")


def _rows(page: Any) -> Any:
    return page.locator(".xterm-rows")


def _click(page: Any, text: str) -> None:
    # The terminal finds out by itself what lies under the pointer.
    box = until(lambda: _rows(page).get_by_text(text, exact=True).bounding_box())
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_a_terminal_outlives_the_page(new_page: NewPage, box: Box) -> None:
    """What was shown is there after a reload, once; a second one has a place beside it; each ends by its button."""
    page = new_page(f"{box.address}?panel=terminal")
    page.get_by_role("button", name="New terminal").click()
    connected(page)
    _type(page, "x=7; echo $((6*x))ly")
    _rows(page).get_by_text("42ly").first.wait_for()
    assert axe_violations(page) == []
    _picture(page, "terminal")
    page.reload()
    _rows(page).get_by_text("42ly").first.wait_for()
    _type(page, "echo $((x*8))ly")
    _rows(page).get_by_text("56ly").first.wait_for()
    assert _rows(page).inner_text().count("42ly") == 1
    terminals = page.get_by_role("group", name="Terminals").get_by_role("button")
    page.get_by_role("button", name="New terminal").click()
    until(lambda: terminals.count() == 2)
    _rows(page).get_by_text("56ly").wait_for(state="detached")
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="End").click()
    _rows(page).get_by_text("56ly").first.wait_for()
    assert len(box.api.get(f"/v1/sandboxes/{box.id}/commands").json()["items"]) == 1


def test_a_terminal_is_listed_that_was_made_during_the_first_look(new_page: NewPage, box: Box) -> None:
    """An answer that is older than the terminal comes after it was made: the list is asked for again."""
    page = new_page(None)
    held: list[tuple[Any, Any]] = []

    def hold_first(route: Any) -> None:
        answer = route.fetch()

        if route.request.method == "GET" and not held:
            held.append((route, answer))
        else:
            route.fulfill(response=answer)

    page.route("**/commands", hold_first)
    page.goto(str(box.api.base_url.join(f"{box.address}?panel=terminal")))
    until(lambda: page.wait_for_timeout(10) or held, "the list is asked for")

    with page.expect_response(lambda answer: answer.request.method == "POST"):
        page.get_by_role("button", name="New terminal").click()

    route, answer = held[0]

    # The page may have given up this request meanwhile.
    with suppress(Exception):
        route.fulfill(response=answer)

    connected(page)


def test_escapes_of_a_guest_reach_neither_page_nor_shell(new_page: NewPage, box: Box) -> None:
    """Title, clipboard, links and queries: the controls show that each would be seen."""
    page = new_page(None)
    page.add_init_script(_CANARIES)
    page.goto(str(box.api.base_url.join(f"{box.address}?panel=terminal")))
    page.get_by_role("button", name="New terminal").click()
    connected(page)
    title = page.title()
    box.run(
        "link = lambda a, t: f'\\x1b]8;;{a}\\x07{t}\\x1b]8;;\\x07\\r\\n'\n"
        "text = '\\x1b]0;TITLE\\x07\\x1b]2;TITLE\\x07\\x1b]52;c;aGFja2Vk\\x07\\x1b[21t'\n"
        "text += link('javascript:alert(1)', 'one')\n"
        "text += link('https://evil.example/' + 'x' * 200 + '?secret', 'two') + 'three'\n"
        "open('escapes', 'w').write(text)\nopen('query', 'w').write('\\x1b[6n')"
    )
    _type(page, "clear; cat escapes")
    _rows(page).get_by_text("three").first.wait_for()
    assert "aGFja2Vk" not in _rows(page).inner_text()
    _click(page, "one")
    assert page.get_by_role("alertdialog").count() == 0
    _click(page, "two")
    question = page.get_by_role("alertdialog")
    question.get_by_text("x" * 200 + "?secret").wait_for()
    assert axe_violations(page) == []
    _picture(page, "terminal-link")
    question.get_by_role("button", name="Cancel").click()
    assert (page.title(), page.evaluate("window.taken")) == (title, [])
    # The controls: the address leaves by the question's button alone, and the clipboard is watched.
    _click(page, "two")
    question.get_by_role("button", name="Open").click()
    page.evaluate("navigator.clipboard.writeText('control')")
    assert [one.split("/")[0] for one in page.evaluate("window.taken")] == [
        "window https:",
        "clipboard control",
    ]

    # A query is answered while the viewer types, and never again by what is shown after a reload.
    _type(page, "clear; stty -echo; cat query; echo $((6*7))asked; exec timeout 600 cat -v")
    _rows(page).get_by_text("42asked").first.wait_for()
    page.keyboard.press("Enter")
    _rows(page).get_by_text("^[[").first.wait_for()
    assert _rows(page).inner_text().count("^[[") == 1
    page.reload()
    connected(page)
    _type(page, "marked")
    _rows(page).get_by_text("marked").first.wait_for()
    assert _rows(page).inner_text().count("^[[") == 1


def test_several_lines_are_pasted_after_a_question(new_page: NewPage, box: Box) -> None:
    """A page that was copied from may have put a line end behind what was seen."""
    page = new_page(f"{box.address}?panel=terminal")
    page.get_by_role("button", name="New terminal").click()
    connected(page)
    paste = """(text) => {
      const data = new DataTransfer();
      data.setData("text/plain", text);
      document.querySelector(".xterm-helper-textarea").dispatchEvent(
        new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(paste, "echo $((6*7))a\necho $((6*7))b\n")
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("alertdialog").wait_for(state="detached")
    _picture(page, "paste")
    page.evaluate(paste, "echo $((6*7))c")
    page.keyboard.press("Enter")
    _rows(page).get_by_text("42c").first.wait_for()
    assert "42a" not in _rows(page).inner_text()
    page.evaluate(paste, "echo $((6*7))d\necho $((6*7))e\n")
    page.get_by_role("alertdialog").get_by_role("button", name="Paste").click()
    page.get_by_role("alertdialog").wait_for(state="detached")
    # The terminal has the focus again once the question is gone: an earlier Enter would reach nothing.
    until(lambda: page.evaluate("document.activeElement.matches('.xterm-helper-textarea')"))
    page.keyboard.press("Enter")
    _rows(page).get_by_text("42e").first.wait_for()


def test_a_port_appears_and_opens_in_a_tab_of_its_own(new_page: NewPage, box: Box) -> None:
    """By keyboard; the page of the guest has no hold of this one, and a name of a program is text."""
    page = new_page(f"{box.address}?panel=ports")
    page.get_by_role("heading", name="No program listens on a port.").wait_for()
    assert axe_violations(page) == []
    ran = box.run(
        "import os, subprocess, sys\n"
        "open('index.html', 'w').write('<p>served</p><script>document.title = String(opener)</script>')\n"
        "os.symlink(sys.executable, '<b>evil\\x1b[1m')\n"
        "server = subprocess.Popen(['./<b>evil\\x1b[1m', '-m', 'http.server', '8000'])"
    )
    assert ran["error"] is None
    ports = page.get_by_role("list", name="Open ports")
    ports.get_by_text("<b>evil␛[1m, process").wait_for()
    page.get_by_role("button", name="Address of port 8000").focus()
    page.keyboard.press("Enter")
    link = ports.get_by_role("link", name="Open port 8000")
    assert "/p/" in link.get_attribute("href")
    assert axe_violations(page) == []
    _picture(page, "ports")

    with page.context.expect_page() as opened:
        page.keyboard.press("Enter")

    opened.value.get_by_text("served").wait_for()
    assert opened.value.title() == "null"
    box.run("server.kill(); server.wait()")
    page.get_by_role("heading", name="No program listens on a port.").wait_for()


def test_connections_are_shown_with_the_rule_that_decided(new_page: NewPage, guarded: Box) -> None:
    """As they are tried, and a sandbox without a network says that it has none."""
    page = new_page(f"{guarded.address}?panel=network")
    page.get_by_text("It has tried no connection.").wait_for()
    assert page.locator("table").get_by_text("allowed.example").is_visible()
    guarded.run(
        "import urllib.request\nfor host in ('other.example', 'no.example'):\n"
        "    try: urllib.request.urlopen(f'http://{host}/')\n    except Exception as error: print(error)"
    )
    table = page.locator("table.connections")
    table.get_by_role("row").filter(has_text="other.example").get_by_text("denied").wait_for()
    row = table.get_by_role("row").filter(has_text="no.example")
    row.wait_for()
    rules = {
        one["name"]: one["rule"]
        for one in guarded.api.get(f"/v1/sandboxes/{guarded.id}/network/log").json()["items"]
    }
    assert row.locator(".deciding").inner_text() == rules["no.example"]
    assert axe_violations(page) == []
    _picture(page, "network")
    page.get_by_label("Filter connections").fill("other")
    row.wait_for(state="detached")


def test_long_numbers_of_json_are_shown_as_they_were_written(new_page: NewPage, box: Box) -> None:
    """Beyond 2^53 and with more digits than a double has; text that looks like a number stays text."""
    numbers = "[9007199254740993, -12345678901234567890123, 0.10000000000000000000001, 1e999]"
    show(box, "application/json", f'{{"numbers": {numbers}, "text": "9007199254740993"}}')
    page = new_page(box.address)
    page.locator(".result").get_by_text("0.10000000000000000000001").wait_for()
    shown = page.locator(".result .plain-text").inner_text()
    assert "".join(shown.split()) == f'{{"numbers":{"".join(numbers.split())},"text":"9007199254740993"}}'
