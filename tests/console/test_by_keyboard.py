"""What people do with the console, by the keyboard alone: Tab reaches what acts, and where the focus is can be seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

from .conftest import Box, NewPage, axe_violations, connected

pytestmark = pytest.mark.timeout(180)
_MOST_TABS = 150
# The element that has the focus, as far as the page itself goes, and whether it can be seen that it has.
_FOCUSED = """
(wanted) => {
  const found = document.activeElement;
  if (found !== wanted) return null;
  const shown = [found, found.parentElement, found.closest("label, .editor, .cm-editor")].some((each) => {
    if (!each) return false;
    const style = getComputedStyle(each);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  });
  return shown || found.matches("[data-highlighted], .xterm-helper-textarea") ? "seen" : "not seen";
}
"""


def _reach(page: Any, target: Any, *, key: str = "Tab") -> None:
    """Moves the focus by one key alone until it is on the target, where it has to be seen."""
    target.wait_for(state="attached")

    for _ in range(_MOST_TABS):
        state = target.evaluate(_FOCUSED)

        if state is not None:
            assert state == "seen", f"the focus on {target} cannot be seen"
            return

        page.keyboard.press(key)

    raise AssertionError(f"{_MOST_TABS} times {key} do not reach {target}")


def _press(page: Any, target: Any, *, key: str = "Enter") -> None:
    _reach(page, target)
    page.keyboard.press(key)


def _button(place: Any, name: str, **given: Any) -> Any:
    return place.get_by_role("button", name=name, **given).first


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _run(page: Any, code: str) -> None:
    page.get_by_role("textbox", name="Code to run").wait_for()
    # Outside of all fields, Enter leads to the composer.
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    until(
        lambda: page.evaluate("document.activeElement.matches('.cm-content')"), "the composer has the focus"
    )
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")


def test_make_run_go_back_and_fork(new_page: NewPage, api: httpx2.Client) -> None:
    """A sandbox is made, runs, asks, fails with a hint, is interrupted, goes back in place and as a fork, is killed."""
    page = new_page()
    _press(page, _button(page, "New sandbox"))
    page.wait_for_url(re.compile("/sandboxes/.+"))
    box = Box(api, page.url.rpartition("/")[2])
    page.get_by_text("Nothing ran here yet.").wait_for()
    _run(page, "rows = [1]; open('kept.txt', 'w').write('first')")
    _cell(page, 1).get_by_text("ok").wait_for()
    _run(page, "name = input('who? '); print('hello', name)")
    field = page.get_by_label("who?")
    field.wait_for()
    page.keyboard.press("Escape")
    _reach(page, field, key="Shift+Tab")
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    _cell(page, 2).get_by_text("hello Ada").wait_for()
    field.wait_for(state="detached")
    page.keyboard.press("c")
    rail = page.get_by_role("region", name="Timeline")
    mark = rail.locator(".checkpoint-mark")
    mark.wait_for()
    _run(page, "rows.append(2); open('kept.txt', 'w').write('second'); missing")
    _cell(page, 3).locator(".error strong").get_by_text("NameError").wait_for()
    _run(page, "while True: pass")
    _cell(page, 4).get_by_text("running").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    page.keyboard.press("i")
    _cell(page, 4).locator(".error strong").get_by_text("nterrupt").wait_for()

    _press(page, mark)
    dialog = page.get_by_role("dialog")
    _press(page, _button(dialog, "Here, in place"))
    dialog.wait_for(state="detached")
    rail.get_by_text("before going to").wait_for()
    assert box.value("rows, open('kept.txt').read()") == "([1], 'first')"

    _press(page, mark.first)
    _press(page, _button(dialog, "As a fork"))
    page.wait_for_url(lambda url: not url.endswith(box.id))
    fork = Box(api, page.url.rpartition("/")[2])
    assert fork.value("rows") == "[1]"
    _press(page, _button(page, "Kill"))
    question = page.get_by_role("alertdialog")
    question.wait_for()
    # What is asked first has the focus: the way back.
    page.keyboard.press("Escape")
    question.wait_for(state="detached")
    _press(page, _button(page, "Kill"))
    _press(page, _button(question, "Kill"))
    until(lambda: api.get(f"/v1/sandboxes/{fork.id}").status_code == 410, "it has ended")
    api.delete(f"/v1/sandboxes/{box.id}")


def test_a_reload_and_a_login_that_ends(new_page: NewPage, box: Box) -> None:
    """A cell runs on while the page is loaded anew; a login ends in the middle of typing, and nothing typed is lost."""
    page = new_page(f"/console/#login={box.api.post('/v1/login/codes').json()['code']}", logged_in=False)
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.goto(page.url.partition("/console/")[0] + box.address)
    _run(page, "import time\nfor i in range(10_000): print('tick', i); time.sleep(0.05)")
    _cell(page, 1).get_by_text("tick 3", exact=True).wait_for()
    page.reload()
    _cell(page, 1).get_by_text("running").wait_for()
    _cell(page, 1).get_by_text("tick 0", exact=True).wait_for()
    page.keyboard.press("i")
    page.keyboard.press("i")
    _cell(page, 1).locator(".error strong").get_by_text("nterrupt").wait_for()
    page.get_by_role("textbox", name="Code to run").wait_for()
    page.keyboard.press("Enter")
    page.keyboard.insert_text("kept = 'typ")
    page.evaluate(
        "fetch('/v1/login', {method: 'DELETE', headers: {'X-Fumehood-Console': '1'}}).then((answer) => answer.status)"
    )
    page.get_by_role("heading", name="Your login has ended").wait_for()
    _reach(page, page.get_by_label("Token of the owner, or of a key"))
    page.keyboard.insert_text(box.api.headers["Authorization"].removeprefix("Bearer "))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Your login has ended").wait_for(state="detached")
    page.keyboard.press("Enter")
    until(lambda: page.evaluate("document.activeElement.matches('.cm-content')"), "the editor has the focus")
    page.keyboard.press("Control+End")
    page.keyboard.insert_text("ed'")
    page.keyboard.press("Shift+Enter")
    _cell(page, 2).get_by_text("ok").wait_for()
    assert box.value("kept") == "'typed'"


def test_a_server_that_restarts(
    new_page: NewPage, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    """It is said while the server is away; when it is back the page goes on by itself, and says what was lost."""
    first = start_server(tmp_path / "state", pool_size=0)
    with httpx2.Client(base_url=first.url, headers=first.headers, timeout=60) as api:
        box = Box(api, api.post("/v1/sandboxes", json={}).json()["id"])
        code = api.post("/v1/login/codes").json()["code"]

    page = new_page(f"/console/#login={code}", of=first, logged_in=False)
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.goto(first.url + box.address)
    _run(page, "'before'")
    _cell(page, 1).get_by_text("'before'").last.wait_for()
    first.stop()
    page.get_by_text("The live view is interrupted").wait_for()
    page.get_by_text("Not up to date").wait_for()
    assert axe_violations(page) == []
    again = start_server(tmp_path / "state", pool_size=0, port=urlsplit(first.url).port)
    assert again.url == first.url
    page.get_by_text("The live view is interrupted").wait_for(state="detached", timeout=60_000)
    page.get_by_text("This sandbox has ended.").wait_for()
    assert _cell(page, 1).is_visible()
    # What is made now needs no other login.
    page.keyboard.press("g")
    page.keyboard.press("s")
    _press(page, _button(page, "New sandbox"))
    page.get_by_text("Nothing ran here yet.").wait_for()


def test_panels_files_and_audit(new_page: NewPage, box: Box, tmp_path: Path) -> None:
    """The inspector's tabs by arrows; a file goes up, is looked at, comes down, is deleted; the audit."""
    box.run("open('note.txt', 'w').write('hello')\nbalance = 30")
    page = new_page(box.address)
    _reach(page, page.get_by_role("tab", name="Variables"))
    page.get_by_text("balance", exact=True).first.wait_for()
    page.keyboard.press("ArrowRight")
    files = page.get_by_role("tabpanel", name="Files")
    files.wait_for()
    (tmp_path / "up.txt").write_text("from outside")
    _reach(page, files.get_by_label("Upload"))
    files.get_by_label("Upload").set_input_files(tmp_path / "up.txt")
    _press(page, _button(files, "note.txt"))
    files.get_by_text("hello", exact=True).wait_for()
    _press(page, _button(files, "Delete up.txt"))
    _press(page, _button(page.get_by_role("alertdialog"), "Delete"))
    _button(files, "up.txt").wait_for(state="detached")

    # A name that is taken would replace what has it.
    _press(page, _button(files, "New folder"))
    page.keyboard.type("note.txt")
    page.keyboard.press("Enter")
    files.get_by_text("That name is taken in this folder.").wait_for()
    files.get_by_label("Name of the new folder").fill("papers")
    page.keyboard.press("Enter")
    _button(files, "papers/").wait_for()
    _press(page, _button(files, "Rename papers"))
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    files.get_by_label("New name of papers").wait_for(state="detached")
    _press(page, _button(files, "Rename papers"))
    page.keyboard.type("letters")
    page.keyboard.press("Enter")
    _button(files, "letters/").wait_for()
    _button(files, "papers/").wait_for(state="detached")
    assert box.value("__import__('os').path.isdir('letters')") == "True"
    _press(page, _button(files, "Get it"))
    link = files.get_by_role("link", name=re.compile("note.txt|Download"))

    with page.expect_download() as download:
        _press(page, link.first)

    assert Path(download.value.path()).read_text() == "hello"
    page.keyboard.press("Escape")
    page.keyboard.press("6")
    audit = page.get_by_role("tabpanel", name="Audit")
    _press(page, audit.get_by_role("button", name="Verify", exact=True))
    audit.get_by_text("Whole:").wait_for()


def test_a_terminal_is_used_and_left(new_page: NewPage, box: Box) -> None:
    """The focus goes into it and comes out again; it is ended by its button."""
    page = new_page(f"{box.address}?panel=terminal")
    page.get_by_role("tabpanel", name="Terminal").wait_for()
    _press(page, _button(page, "New terminal"))
    connected(page)
    until(
        lambda: page.evaluate("document.activeElement.matches('.xterm-helper-textarea')"), "it has the focus"
    )
    page.keyboard.type("echo $((6*7))ly")
    page.keyboard.press("Enter")
    page.locator(".xterm-rows").get_by_text("42ly").first.wait_for()
    # Tab is the shell's.
    page.keyboard.press("Shift+F6")
    _press(page, _button(page, "End", exact=True))
    _press(page, _button(page.get_by_role("alertdialog"), "End"))
    until(lambda: box.api.get(f"/v1/sandboxes/{box.id}/commands").json()["items"] == [], "it has ended")


def test_moments_and_ways(new_page: NewPage, box: Box) -> None:
    """Two moments are compared, ways run beside each other, and one is kept."""
    box.run("items = [1, 2]")
    assert box.api.post(f"/v1/sandboxes/{box.id}/checkpoints", json={"name": "start"}).status_code == 201
    box.run("items.append(3)")
    page = new_page(box.address)
    page.get_by_role("region", name="Timeline").wait_for()
    _press(page, page.get_by_role("link", name="Compare", exact=True))
    _press(page, _button(page, "items"))
    page.get_by_role("region", name="start").get_by_text("2", exact=True).first.wait_for()
    _press(page, page.get_by_role("main").get_by_role("link").first)
    _press(page, page.get_by_role("link", name="Branches", exact=True))
    _reach(page, page.get_by_label("Way 1"))
    page.keyboard.insert_text("items.append('a'); len(items)")
    _reach(page, page.get_by_label("Way 2"))
    page.keyboard.insert_text("items.clear()")
    _press(page, _button(page, "Run them side by side"))
    first = page.get_by_role("region", name="Way 1")
    _press(page, _button(first, "Keep"))
    _press(page, _button(page.get_by_role("alertdialog"), "Keep it"))
    page.get_by_role("textbox", name="Code to run").wait_for()
    assert box.value("items") == "[1, 2, 3, 'a']"


def test_a_share_is_made_and_revoked(new_page: NewPage, box: Box) -> None:
    """The dialog is filled, the address is there, and the share is revoked on its page."""
    box.run("print('before')")
    page = new_page(box.address)
    _press(page, _button(page, "Share"))
    dialog = page.get_by_role("dialog")
    _reach(page, dialog.get_by_label("Variables"))
    page.keyboard.press("Space")
    _press(page, _button(dialog, "Make the address"))
    address = dialog.get_by_label("Address of the share").input_value()
    reader = new_page(f"/share/{address.partition('/share/')[2]}", logged_in=False)
    _cell(reader, 1).get_by_text("before", exact=True).wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.get_by_role("heading", name="Shares").wait_for()
    card = page.get_by_role("listitem").filter(has=page.get_by_text("1 look on now"))
    _press(page, _button(card, "Revoke"))
    _press(page, _button(page.get_by_role("alertdialog"), "Revoke"))
    reader.get_by_role("heading", name="This share has ended.").wait_for(timeout=5000)


def test_a_key_is_made_rotated_and_revoked(new_page: NewPage, console_server: RunningServer) -> None:
    """Its token is shown once and works until the key is revoked."""
    page = new_page("/console/keys")
    _press(page, _button(page, "New key"))
    dialog = page.get_by_role("dialog")
    _reach(page, dialog.get_by_label("Name"))
    page.keyboard.type("typed")
    _press(page, _button(dialog, "Make the key"))
    token = page.locator("code", has_text="fh_").inner_text()
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx2.get(f"{console_server.url}/v1/me", headers=headers).status_code == 200
    _press(page, _button(page, "I have it"))
    card = page.get_by_role("listitem").filter(has_text="typed")
    _press(page, _button(card, "Revoke"))
    _press(page, _button(page.get_by_role("alertdialog"), "Revoke"))
    card.wait_for(state="detached")
    until(
        lambda: httpx2.get(f"{console_server.url}/v1/me", headers=headers).status_code == 401,
        "the key is revoked",
    )


def test_labels_are_changed(new_page: NewPage, box: Box) -> None:
    """One is added, one is changed, one goes: what was not touched stays, and the focus returns to the button."""
    box.api.patch(f"/v1/sandboxes/{box.id}", json={"metadata": {"stage": "draft", "keep": "this"}})
    page = new_page(box.address)
    _press(page, _button(page, "Labels"))
    dialog = page.get_by_role("dialog")
    names = dialog.get_by_label(re.compile("Name of label"))
    names.first.wait_for()
    assert dialog.evaluate("(it) => it.scrollWidth <= it.clientWidth"), "all of it is seen"
    rows = {names.nth(at).input_value(): at + 1 for at in range(names.count())}
    _reach(page, dialog.get_by_label(f"Value of label {rows['stage']}"))
    page.keyboard.press("Control+a")
    page.keyboard.type("final")
    _press(page, dialog.get_by_label(f"Remove label {rows['test']}"))
    last = names.count()
    _reach(page, dialog.get_by_label(f"Name of label {last}"))
    page.keyboard.type("team")
    _reach(page, dialog.get_by_label(f"Value of label {last}"))
    page.keyboard.type("blue")
    page.keyboard.press("Enter")
    dialog.wait_for(state="detached")
    until(
        lambda: (
            box.api.get(f"/v1/sandboxes/{box.id}").json()["metadata"]
            == {"stage": "final", "keep": "this", "team": "blue"}
        ),
        "the labels are changed",
    )
    page.get_by_text("team=blue").or_(page.get_by_text("blue")).first.wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Labels"
