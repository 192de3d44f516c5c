"""The keyboard alone: the palette, the list of keys, and the switch that turns single keys off."""

from __future__ import annotations

from .conftest import Box, NewPage, axe_violations


def test_the_palette_leads_everywhere(new_page: NewPage, box: Box) -> None:
    """`Ctrl K` finds views and living sandboxes; arrows choose, `Enter` goes there, `Esc` gives the focus back."""
    page = new_page()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    field.wait_for()
    page.keyboard.type("shar")
    page.get_by_role("option", name="Shares").wait_for()

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert axe_violations(page) == []

    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Shares").wait_for()
    page.keyboard.press("Control+k")
    field.wait_for()
    page.keyboard.type(box.id[:12])
    page.get_by_role("option", name="Sandbox").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Sandbox").wait_for()
    assert page.url.endswith(box.address)


def test_single_keys_are_listed_and_can_be_switched_off(new_page: NewPage, box: Box) -> None:
    """`?` lists them; switched off, none acts, but the list itself is found again, and `Ctrl K` still works."""
    page = new_page()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.get_by_text("go to a view or a sandbox").wait_for()
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.get_by_role("heading", name="Usage").wait_for()

    page.keyboard.press("?")
    dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").wait_for()
    assert page.url.endswith("/usage")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    dialog.get_by_role("checkbox").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_role("heading", name="Sandboxes").wait_for()
