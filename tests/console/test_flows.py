"""What people do with the console, in a real browser: log in, watch what a program runs, run, go back, verify."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

from .conftest import Box, NewPage, axe_violations

# All tests of a browser share it, and the server.
pytestmark = pytest.mark.timeout(180)

_FRAME = (
    "import pandas as pd\nframe = pd.DataFrame({'city': ['Berlin', None, 'Rome'], 'heat': [3, 1, 2]})\nframe"
)
_PLOT = (
    "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 9], label='speed')\n"
    "plt.title('Speeds')\nplt.xlabel('time')\nplt.show()"
)


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _run(page: Any, code: str) -> None:
    editor = page.get_by_role("textbox", name="Code to run")
    editor.click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")


def test_the_printed_address_logs_in_once(
    new_page: NewPage, console_server: RunningServer, api: httpx2.Client
) -> None:
    """The code leaves the address before anything else; the cookie is not for scripts; a second use is refused."""
    address = api.post("/v1/login/codes").json()["url"]
    path = address.removeprefix(console_server.url)
    page = new_page(path, logged_in=False)
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.get_by_text("this browser is now logged in as owner").wait_for()
    assert "login" not in page.url
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.reload()
    page.get_by_role("heading", name="Sandboxes").wait_for()

    again = new_page(path, logged_in=False)
    again.get_by_text("was used already").wait_for()
    assert "login" not in again.url


def test_a_token_logs_in_and_a_wrong_one_does_not(new_page: NewPage, console_server: RunningServer) -> None:
    """By keyboard alone; the field keeps no token, and logging out ends the login."""
    page = new_page(logged_in=False)
    field = page.get_by_label("Token of the owner, or of a key")
    field.wait_for()
    assert axe_violations(page) == []
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The token was not taken").wait_for()
    field.fill(console_server.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.get_by_role("button", name="owner").click()
    page.get_by_role("menuitem", name="Log out", exact=True).click()
    page.get_by_label("Token of the owner, or of a key").wait_for()
    assert (
        page.evaluate(
            "fetch('/v1/me', {headers: {'X-Fumehood-Console': '1'}}).then((answer) => answer.status)"
        )
        == 401
    )


def test_a_code_replaces_no_login_without_a_question(
    new_page: NewPage, console_server: RunningServer, api: httpx2.Client
) -> None:
    """An address of another key asks first; afterwards the page says whose login it is."""
    made = api.post("/v1/keys", json={"name": "stranger"})
    assert made.status_code == 201, made.text
    token = made.json()["token"]
    answer = httpx2.post(
        f"{console_server.url}/v1/login/codes", headers={"Authorization": f"Bearer {token}"}, timeout=30
    )
    path = answer.json()["url"].removeprefix(console_server.url)

    page = new_page(path)
    page.get_by_text("This browser is logged in as owner").wait_for()
    assert "login" not in page.url
    assert axe_violations(page) == []
    page.get_by_role("button", name="Stay logged in as owner").click()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    assert page.get_by_role("button", name="owner", exact=True).is_visible()

    # The code was not used.
    page = new_page(path)
    page.get_by_role("button", name="Use the code").click()
    page.get_by_role("status").get_by_text("is now logged in as stranger").wait_for()
    assert page.get_by_role("button", name="stranger", exact=True).is_visible()
    assert axe_violations(page) == []


def test_the_list_shows_what_lives(page: Any, box: Box) -> None:
    """It appears by itself, is filtered by its label, and is killed after a question."""
    page.goto(page.url + "sandboxes")
    row = page.get_by_role("row").filter(has_text="test=console")
    row.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("no such label")
    page.get_by_text("No sandbox fits this filter.").wait_for()
    page.get_by_label("Filter").fill("test=console")
    row.wait_for()
    assert axe_violations(page) == []
    row.get_by_role("button", name=re.compile("^Kill")).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Kill").click()
    page.get_by_role("alertdialog").wait_for(state="detached")
    row.wait_for(state="detached")
    assert box.api.get(f"/v1/sandboxes/{box.id}").status_code in (404, 410)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_program_ran_is_the_page(new_page: NewPage, box: Box, scheme: str) -> None:
    """Code, output with its colours, a table and a chart from their data, an error; and it is accessible."""
    page = new_page(box.address, color_scheme=scheme)
    page.get_by_text("Nothing ran here yet.").wait_for()
    box.run("print('\\x1b[32mgreen\\x1b[0m'); import sys; print('careful', file=sys.stderr)")
    _cell(page, 1).get_by_text("green", exact=True).wait_for()
    assert "f-green" in _cell(page, 1).get_by_text("green", exact=True).get_attribute("class")
    assert "stderr" in _cell(page, 1).locator(".line", has_text="careful").get_attribute("class")
    assert _cell(page, 1).get_by_text("owner · API").is_visible()

    box.run(_FRAME)
    table = _cell(page, 2).get_by_role("table", name="Data")
    table.wait_for()
    assert table.get_by_role("row").nth(2).inner_text().split() == ["1", "null", "1"]
    table.get_by_role("button", name="heat").click()
    assert table.get_by_role("row").nth(1).inner_text().split() == ["1", "null", "1"]

    box.run(_PLOT)
    chart = _cell(page, 3).get_by_role("img", name="Speeds")
    chart.wait_for()
    assert chart.locator("polyline").get_attribute("points").count(",") == 3
    _cell(page, 3).get_by_role("button", name="Numbers").click()
    assert _cell(page, 3).get_by_role("cell", name="9", exact=True).is_visible()
    _cell(page, 3).get_by_role("button", name="Picture").click()
    picture = _cell(page, 3).get_by_role("img", name="From the sandbox")
    picture.wait_for()
    until(
        lambda: picture.evaluate("(image) => image.complete && image.naturalWidth > 100"),
        "the picture is loaded",
    )

    box.run("frame['heats']")
    _cell(page, 4).locator(".error").get_by_text("KeyError").first.wait_for()
    assert axe_violations(page) == []


def test_code_is_run_answered_and_interrupted(new_page: NewPage, box: Box) -> None:
    """By keyboard: Shift+Enter runs, `input()` is answered in its cell, I I interrupts; earlier code comes back."""
    page = new_page(box.address)
    _run(page, "answer = 6 * 7\nanswer")
    _cell(page, 1).locator(".result").get_by_text("42").wait_for()

    _run(page, "name = input('who? '); print('hello', name)")
    page.get_by_label("who?").fill("Ada")
    page.keyboard.press("Enter")
    _cell(page, 2).get_by_text("hello Ada").wait_for()

    _run(page, "import time\nwhile True: time.sleep(0.01)")
    _cell(page, 3).get_by_text("running").wait_for()
    page.get_by_role("textbox", name="Code to run").click()
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    page.keyboard.press("i")
    _cell(page, 3).locator(".error strong").get_by_text("nterrupt").wait_for()
    assert box.value("answer, name") == "(42, 'Ada')"


def test_going_here_in_place_and_as_a_fork(new_page: NewPage, box: Box) -> None:
    """Variables and files are as they were; what came after is marked as undone; the fork has a life of its own."""
    box.run("rows = [1]; open('kept.txt', 'w').write('first')")
    made = box.api.post(f"/v1/sandboxes/{box.id}/checkpoints", json={"name": "clean"})
    assert made.status_code in (200, 201), made.text
    box.run("rows.append(2); open('kept.txt', 'w').write('second')")

    page = new_page(box.address)
    rail = page.get_by_role("region", name="Timeline")
    rail.get_by_role("button", name="clean").click()
    assert axe_violations(page) == []
    page.get_by_role("button", name="As a fork").click()
    page.wait_for_url(lambda url: "/console/sandboxes/" in url and not url.endswith(box.id))
    fork = Box(box.api, page.url.rpartition("/")[2])
    assert fork.value("rows, open('kept.txt').read()") == "([1], 'first')"
    page.get_by_text("Parents and forks").click()
    family = page.get_by_role("list", name="Family").get_by_role("listitem")
    family.filter(has_text="this one").wait_for()
    assert family.first.get_by_role("link").get_attribute("title") == box.id

    page.goto(page.url.replace(fork.id, box.id))
    assert box.value("rows, open('kept.txt').read()") == "([1, 2], 'second')"
    rail.get_by_role("button", name="clean").click()
    page.get_by_role("button", name="Here, in place").click()
    rail.get_by_text("before going to clean").wait_for()
    assert box.value("rows, open('kept.txt').read()") == "([1], 'first')"
    rail.get_by_role("button", name="Cell 2, ok, undone").wait_for()
    _cell(page, 2).get_by_text("undone").wait_for()
    box.api.delete(f"/v1/sandboxes/{fork.id}")


def test_the_audit_record_is_verified_on_its_raw_lines(new_page: NewPage, box: Box, tmp_path: Path) -> None:
    """Whole as it is; of a file with one byte changed, the line is named; a kept head is held against it."""
    head = box.run("'\"hash\":\"' + 'a' * 64")["audit_head"]
    box.run("2 ** 70")
    page = new_page(f"{box.address}?panel=audit")
    page.get_by_role("button", name="Verify", exact=True).click()
    verdict = page.locator(".verification [role=status]")
    verdict.get_by_text("Whole:").wait_for()
    assert "it is not proven" in verdict.inner_text()
    assert axe_violations(page) == []

    page.get_by_label("A head that was kept elsewhere").fill(f"{head['sequence']}:{head['hash']}")
    page.get_by_role("button", name="Verify", exact=True).click()
    verdict.get_by_text("The kept head is one of them.").wait_for()

    lines = box.api.get(f"/v1/sandboxes/{box.id}/audit", params={"form": "lines"}).text.splitlines()
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([lines[0], lines[1].replace('"ok"', '"no"', 1), *lines[2:]]) + "\n")
    page.get_by_label("Verify a file").set_input_files(changed)
    verdict.get_by_text("Broken at line 2:").wait_for()


def test_files_come_in_and_can_be_looked_at(new_page: NewPage, box: Box, tmp_path: Path) -> None:
    """Uploaded from the page, read by code; written by code, seen in the page with its hidden marks."""
    page = new_page(f"{box.address}?panel=files")
    (tmp_path / "up.txt").write_text("from outside")
    page.get_by_label("Upload").set_input_files(tmp_path / "up.txt")
    page.get_by_role("button", name="up.txt", exact=False).first.wait_for()
    assert box.value("open('/home/user/up.txt').read()") == "'from outside'"
    box.run("open('/home/user/evil\\u202etxt.exe', 'w').write('a\\u202eb')")
    page.get_by_role("button", name="/", exact=True).click()
    page.get_by_role("button", name="home/").click()
    page.get_by_role("button", name="user/").click()
    page.get_by_role("button", name="evil<U+202E>txt.exe", exact=False).first.click()
    page.get_by_text("a<U+202E>b").wait_for()
    assert axe_violations(page) == []
    # Changed in the page, whole and with its line ends; and not over what code has written meanwhile.
    box.run("open('edit.txt', 'w', newline='').write('one\\r\\ntwo\\r\\n')")
    files = page.get_by_role("tabpanel", name="Files")
    files.get_by_role("button", name="edit.txt", exact=False).first.click()
    files.get_by_role("button", name="Edit", exact=True).click()
    field = files.get_by_label("Text of edit.txt")
    field.fill("one\nthree\n")
    assert axe_violations(page) == []
    files.get_by_role("button", name="Save").click()
    field.wait_for(state="detached")
    files.get_by_text("three").wait_for()
    assert box.value("open('edit.txt', newline='').read()") == repr("one\r\nthree\r\n")
    files.get_by_role("button", name="Edit", exact=True).click()
    field.fill("lost?")
    box.run("open('edit.txt', 'w').write('by code')")
    files.get_by_role("button", name="Save").click()
    files.get_by_text("The file has changed since it was read").wait_for()
    assert (field.input_value(), box.value("open('edit.txt').read()")) == ("lost?", "'by code'")
    # What is not saved outlives another file, a list that is read anew, another tab, and the file itself.
    leaving = "() => !dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    unsaved = files.get_by_role("button", name="/home/user/edit.txt", exact=True)
    files.get_by_role("button", name="up.txt", exact=False).first.click()
    unsaved.click()
    assert field.input_value() == "lost?"
    files.get_by_label("Upload").set_input_files(tmp_path / "up.txt")
    page.get_by_role("tab", name="Variables").click()
    page.get_by_role("tab", name="Files").click()
    assert axe_violations(page) == []
    unsaved.click()
    files.get_by_role("button", name="Delete edit.txt").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    files.get_by_role("button", name="Delete edit.txt").wait_for(state="detached")
    assert (field.input_value(), page.evaluate(leaving)) == ("lost?", True)
    # A file that has grown without measure is not read whole for the comparison.
    box.run("with open('edit.txt', 'wb') as file: file.truncate(1 << 30)")
    files.get_by_role("button", name="Save").click()
    files.get_by_text("The file has changed since it was read").wait_for()
    files.get_by_role("button", name="Cancel").click()
    assert (unsaved.count(), page.evaluate(leaving)) == (0, False)


def test_what_ran_can_be_taken_along(new_page: NewPage, box: Box) -> None:
    """As a notebook whose cells are those of the page, and as a program."""
    box.run("total = 6 * 7\ntotal")
    page = new_page(box.address)
    _cell(page, 1).wait_for()

    for form, wanted in (("Notebook", '"nbformat"'), ("Program", "total = 6 * 7")):
        page.get_by_role("button", name="Export").click()

        with page.expect_download() as download:
            page.get_by_role("menuitem", name=form).click()

        assert wanted in Path(download.value.path()).read_text()

    page.get_by_role("button", name="Export").click()

    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Saved state").click()

    saved = Path(download.value.path()).read_bytes()
    form = {"state": ("state", saved)}
    answer = box.api.post("/v1/sandboxes/load", files=form)
    assert answer.status_code == 201, answer.text
    box.api.delete(f"/v1/sandboxes/{answer.json()['sandbox']['id']}")


def test_a_login_that_ended_loses_nothing(new_page: NewPage, box: Box) -> None:
    """In the middle of typing: the login comes over the page, and afterwards the text is there and runs."""
    # A login of its own, since it ends.
    page = new_page(f"/console/#login={box.api.post('/v1/login/codes').json()['code']}", logged_in=False)
    page.get_by_role("link", name=re.compile("…")).first.click()
    page.goto(page.url.partition("/console/")[0] + box.address)
    page.get_by_role("textbox", name="Code to run").click()
    page.keyboard.insert_text("kept = 'typed'")
    page.evaluate(
        "fetch('/v1/login', {method: 'DELETE', headers: {'X-Fumehood-Console': '1'}}).then((answer) => answer.status)"
    )
    page.get_by_role("heading", name="Your login has ended").wait_for()
    page.get_by_label("Token of the owner, or of a key").fill(
        box.api.headers["Authorization"].removeprefix("Bearer ")
    )
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Your login has ended").wait_for(state="detached")
    page.get_by_role("textbox", name="Code to run").click()
    page.keyboard.press("Shift+Enter")
    _cell(page, 1).get_by_text("ok").wait_for()
    assert box.value("kept") == "'typed'"


def test_an_ended_sandbox_says_why(new_page: NewPage, box: Box) -> None:
    """Killed by another: what was read stays, nothing can be run; opened anew, the reason is there."""
    page = new_page(box.address)
    _run(page, "'still here'")
    _cell(page, 1).get_by_text("'still here'").last.wait_for()
    box.api.delete(f"/v1/sandboxes/{box.id}")
    page.get_by_text("This sandbox has ended.").wait_for()
    assert _cell(page, 1).is_visible()
    assert page.get_by_role("textbox", name="Code to run").count() == 0
    page.reload()
    page.get_by_text("It is gone").wait_for()
    assert axe_violations(page) == []


def test_looking_changes_nothing(new_page: NewPage, box: Box) -> None:
    """A paused sandbox stays paused and its end where it is, whatever is looked at; the record gets no cell."""
    box.run("class Spy:\n    def __repr__(self): open('seen', 'w'); return 'x'\nspy = Spy()")
    before = box.api.get(f"/v1/sandboxes/{box.id}").json()
    page = new_page(box.address)
    _cell(page, 1).wait_for()
    box.api.post(f"/v1/sandboxes/{box.id}/pause", json={})
    page.get_by_text("Nothing runs in it, and this page does not wake it.").wait_for()

    for name in ("Audit", "Isolation"):
        page.get_by_role("tab", name=name).click()

    page.reload()
    page.get_by_role("tab", name="Isolation").click()
    page.get_by_text("It runs as a user that owns nothing on this machine.").wait_for()
    assert axe_violations(page) == []
    after = box.api.get(f"/v1/sandboxes/{box.id}").json()
    assert (after["state"], after["started_at"]) == ("paused", before["started_at"])
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("textbox", name="Code to run").wait_for()
    assert box.value("__import__('os').path.exists('seen')") == "False"


def test_a_narrow_screen_has_all_of_it(new_page: NewPage, box: Box) -> None:
    """At 375 pixels nothing is wider than the page; the inspector is a sheet."""
    box.run(f"{_FRAME}\nprint('x' * 400)")
    page = new_page(box.address, viewport={"width": 375, "height": 740})
    _cell(page, 1).wait_for()
    page.get_by_role("button", name="Inspect").click()
    page.get_by_role("tab", name="Isolation").click()
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 375


def test_large_ids_and_problems_are_text(new_page: NewPage, api: httpx2.Client) -> None:
    """An address that names nothing is answered in words, and its text is not markup."""
    page = new_page("/console/sandboxes/%3Cimg%20src=x%20onerror=alert(1)%3E")
    page.get_by_text("There is nothing here for this key").wait_for()
    assert page.locator("main img").count() == 0
    assert json.loads(api.get("/v1/me").text)["is_owner"] is True
    # A percent sign that begins no escape.
    page.goto(f"{page.url.partition('/console/')[0]}/console/sandboxes/%")
    page.get_by_text("There is nothing here for this key").wait_for()


def test_keys_usage_and_queue_of_an_operator(new_page: NewPage, console_server: RunningServer) -> None:
    """A key is made with bounds, its token is shown once and works, its use is counted, and it is revoked."""
    page = new_page()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name").fill("robots")
    page.get_by_label("Executions a day").fill("5")
    assert axe_violations(page) == []
    page.get_by_role("button", name="Make the key").click()
    token = page.locator("code", has_text="fh_").inner_text()
    headers = {"Authorization": f"Bearer {token}"}

    with httpx2.Client(base_url=console_server.url, headers=headers, timeout=60) as robots:
        assert robots.post("/v1/execute", json={"code": "6 * 7"}).status_code == 200

    page.get_by_role("button", name="I have it").click()
    assert page.locator("code", has_text="fh_").count() == 0
    page.reload()
    card = page.get_by_role("listitem").filter(has_text="robots")
    card.get_by_text("1 of 5").wait_for()
    assert axe_violations(page) == []
    card.get_by_role("button", name="Revoke").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Revoke").click()
    card.wait_for(state="detached")
    until(
        lambda: httpx2.get(f"{console_server.url}/v1/me", headers=headers).status_code == 401,
        "the key is revoked",
    )

    page.get_by_role("link", name="Usage").click()
    page.get_by_role("img", name="Executions").wait_for()
    assert axe_violations(page) == []
    page.get_by_role("link", name="Queue").click()
    page.get_by_text("Ready in the pool").wait_for()
    assert axe_violations(page) == []
    page.get_by_role("link", name="Server").click()
    page.get_by_label("Filter settings").fill("port to listen")
    page.get_by_role("row", name="port to listen").get_by_text("--port").wait_for()
    page.get_by_role("heading", name="Security events since the start").wait_for()
    page.get_by_role("region", name="Machines").get_by_role("row").nth(1).get_by_text("ready").wait_for()
    page.get_by_role("region", name="Templates").get_by_text("default").first.wait_for()
    assert axe_violations(page) == []
    answered = page.evaluate("fetch('/v1/keys').then((answer) => answer.status)")
    assert answered == 401, "the cookie counts without the header"
