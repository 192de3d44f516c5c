"""Two moments side by side, several ways of which one is kept, and the server at a glance, in a real browser."""

from __future__ import annotations

import re

import pytest
from tests.waiting import until

from .conftest import Box, NewPage, axe_violations

pytestmark = pytest.mark.timeout(180)


def test_moments_are_compared_and_one_of_several_ways_is_kept(new_page: NewPage, box: Box) -> None:
    """What differs is seen as it was and as it is; ways run beside each other; the one kept goes on under the id."""
    box.run("items = [1, 2, 3]; open('notes.txt', 'w').write('one\\ntwo\\n')")
    answer = box.api.post(f"/v1/sandboxes/{box.id}/checkpoints", json={"name": "start"})
    assert answer.status_code == 201, answer.text
    box.run("items[1] = 9; open('notes.txt', 'w').write('one\\n2\\n')")
    page = new_page(f"{box.address}/compare")
    page.get_by_role("button", name="items").click()
    page.get_by_role("region", name="start").get_by_text("2", exact=True).nth(1).wait_for()
    page.get_by_role("region", name="now", exact=True).get_by_text("9", exact=True).wait_for()
    page.get_by_role("button", name="/home/user/notes.txt").click()
    page.get_by_text("- two").wait_for()
    page.get_by_text("+ 2").wait_for()
    assert axe_violations(page) == []
    # By the keyboard alone; what does not fit is not listed.
    page.locator("h1").click()
    page.keyboard.press("/")
    page.keyboard.type("NOTES")
    page.get_by_role("button", name="items").wait_for(state="detached")
    page.get_by_role("button", name="/home/user/notes.txt").wait_for()
    page.get_by_text("0 of them fit the filter.").wait_for()
    page.get_by_label("Filter by name").fill("")
    page.get_by_label("What").select_option("modified")
    page.get_by_role("button", name="/home/user/notes.txt").wait_for()
    page.get_by_label("What").select_option("")

    page.goto(page.url.replace("/compare", "/branches").partition("?")[0])
    page.get_by_label("From").select_option(
        label=page.get_by_label("From").locator("option").nth(1).inner_text()
    )
    page.get_by_label("Way 1").fill("items.append('first'); len(items)")
    page.get_by_label("Way 2").fill("items.clear(); 1 / 0")
    page.get_by_role("button", name="Run them side by side").click()
    page.get_by_role("region", name="Way 2").get_by_text("ZeroDivisionError: division by zero").wait_for()
    page.get_by_label("An expression for all of them").fill("sum(map(bool, items))")
    page.get_by_role("button", name="Compute it in each").click()
    first = page.get_by_role("region", name="Way 1")
    first.locator(".value").get_by_text("4", exact=True).wait_for()
    page.reload()
    first.get_by_text(re.compile(r"\d+ variables, \d+ files changed")).wait_for()
    assert axe_violations(page) == []
    first.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Keep it").click()
    page.get_by_role("textbox", name="Code to run").wait_for()
    assert box.value("items") == "[1, 2, 3, 'first']"
    until(lambda: box.api.get("/v1/sandboxes", params={"parent_id": box.id}).json()["items"] == [])

    page.goto(page.url.partition("/sandboxes/")[0] + "/overview")
    page.get_by_role("region", name="Where code ran last").get_by_role("link").first.wait_for()
    page.get_by_role("region", name="Now").get_by_text("Sandboxes").wait_for()
    assert axe_violations(page) == []
