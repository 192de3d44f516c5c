"""What the page says when connections break for real, and what was sent again is done once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningServer

from .conftest import Box, NewPage, axe_violations
from .proxy import BreakingProxy, refusal

pytestmark = pytest.mark.timeout(180)

_UNKNOWN = "It is not known whether that happened"
_COUNT = "count = globals().get('count', 0) + 1"


@pytest.fixture
def proxy(console_server: RunningServer) -> Iterator[BreakingProxy]:
    """A proxy of the server of the console's tests."""
    made = BreakingProxy(console_server.url)
    yield made
    made.close()


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def _run(page: Any, code: str = "") -> None:
    editor = page.get_by_role("textbox", name="Code to run")
    editor.focus()

    if code:
        page.keyboard.insert_text(code)

    editor.press("Shift+Enter")


def _looked(page: Any, within: Any = None) -> None:
    """The unknown outcome is told, no button repeats the act, and the viewer looks by the keyboard."""
    place = within or page
    place.get_by_text(_UNKNOWN).wait_for()
    assert not _button(place, "Try again").is_visible()

    # Behind a dialog, what is dimmed already lies in its shade.
    if within is None:
        assert axe_violations(page) == []

    _button(place, "Look whether it happened").press("Enter")


def test_acts_whose_answer_is_lost_are_looked_for_and_done_once(
    new_page: NewPage, box: Box, proxy: BreakingProxy, tmp_path: Path
) -> None:
    """Running, uploading, going back and killing: each was sent, and its connection ended."""
    page = new_page(None, of=proxy)
    page.goto(f"{proxy.url}{box.address}?panel=files")
    page.get_by_text("Nothing ran here yet.").wait_for()
    executions = f"POST /v1/sandboxes/{box.id}/executions "

    # It ran, though no answer came. Browsers themselves send a request again whose connection was an old one.
    proxy.set(executions, "cut")
    _run(page, _COUNT)
    _looked(page)
    assert proxy.met >= 1
    page.get_by_text("It ran: it is cell 1.").wait_for()
    proxy.pass_all()

    # It never arrived.
    proxy.set(executions, "lose")
    _run(page, _COUNT + " ")
    _looked(page)
    page.get_by_text("No cell with this code has begun since.").wait_for()
    proxy.pass_all()
    _run(page)
    _cell(page, 2).get_by_text("ok").wait_for()

    # It ran, and is sent again without a look.
    proxy.set(executions, "cut")
    _run(page, _COUNT + "  ")
    page.get_by_text(_UNKNOWN).wait_for()
    proxy.pass_all()
    _run(page)
    page.get_by_text(_UNKNOWN).wait_for(state="detached")
    _cell(page, 3).get_by_text("ok").wait_for()
    assert box.value("count") == "3"

    (tmp_path / "up.txt").write_text("from outside")
    proxy.set("PUT ", "cut")
    page.get_by_label("Upload").set_input_files(tmp_path / "up.txt")
    _looked(page)
    page.get_by_text("The page was read anew").wait_for()
    _button(page, "up.txt").wait_for()
    proxy.pass_all()

    box.api.post(f"/v1/sandboxes/{box.id}/checkpoints", json={"name": "clean"})
    box.run("count = 100")
    page.get_by_role("region", name="Timeline").get_by_role("button", name="clean").press("Enter")
    proxy.set(f"POST /v1/sandboxes/{box.id}/checkpoints/", "cut")
    _button(page, "Here, in place").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text(_UNKNOWN).wait_for()
    assert _button(dialog, "Here, in place").is_disabled()
    _looked(page, dialog)
    _cell(page, 5).get_by_text("undone").wait_for()
    proxy.pass_all()

    # It never arrived, and the view behind the dialog says so.
    proxy.set("DELETE ", "lose")
    _button(page, "Kill").press("Enter")
    dialog = page.get_by_role("alertdialog")
    _button(dialog, "Kill").press("Enter")
    dialog.get_by_text(_UNKNOWN).wait_for()
    assert _button(dialog, "Kill").is_disabled()
    _looked(page, dialog)
    dialog.wait_for(state="detached")

    # It was done, and the live view says so before any look.
    proxy.set("DELETE ", "cut")
    _button(page, "Kill").press("Enter")
    _button(dialog, "Kill").press("Enter")
    page.get_by_text("This sandbox has ended.").wait_for()


def test_refusals_for_now_count_down(new_page: NewPage, box: Box, proxy: BreakingProxy) -> None:
    """A read tries again by itself; an act says how long it has to wait, and then offers to be sent again."""
    page = new_page(None, of=proxy)
    page.goto(f"{proxy.url}{box.address}")
    page.get_by_text("Nothing ran here yet.").wait_for()
    proxy.set(f"GET /v1/sandboxes/{box.id}/files?", "refuse", refusal(429, 2))
    page.keyboard.press("2")
    page.get_by_text("Tries again in 2 s.").wait_for()
    page.get_by_text("Tries again in 1 s.").wait_for()
    proxy.pass_all()
    page.get_by_role("navigation", name="Folder").wait_for()
    page.get_by_text("Tries again in").wait_for(state="detached")

    proxy.set(f"POST /v1/sandboxes/{box.id}/executions ", "refuse", refusal(503, 2))
    _run(page, _COUNT)
    page.get_by_text("You can try again in 2 s.").wait_for()
    assert _button(page, "Try again").is_disabled()
    assert axe_violations(page) == []
    page.get_by_text("You can try again in 1 s.").wait_for()
    page.get_by_text("You can try again now.").wait_for()
    assert proxy.met == 1
    proxy.pass_all()
    _button(page, "Try again").press("Enter")
    _cell(page, 1).get_by_text("ok").wait_for()
    assert box.value("count") == "1"
