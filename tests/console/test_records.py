"""What ran in a sandbox that has ended: found, looked at, and run again, in a browser."""

from __future__ import annotations

from tests.waiting import until

from .conftest import Box, NewPage, axe_violations


def test_an_ended_sandbox_is_looked_at_and_runs_again(new_page: NewPage, box: Box) -> None:
    """By the keyboard alone: its cells and results are as they were; a replay names the cell that differs."""
    # Without playwright the fixtures have skipped this.
    from playwright.sync_api import expect

    box.run("from IPython.display import HTML\nHTML('<b>bold</b><script>top.ran = 1</script>')")
    box.run("import os\nos.urandom(4).hex()")
    box.run("print('same')")
    commands = f"/v1/sandboxes/{box.id}/commands"
    box.api.post(commands, json={"command": "echo '<b>typed</b>' && exit 3"}).raise_for_status()
    until(lambda: box.api.get(f"{commands}/history").json()["items"][0].get("exit_code") == 3)
    box.api.delete(f"/v1/sandboxes/{box.id}")
    page = new_page()
    page.get_by_role("heading", name="Sandboxes").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.get_by_role("heading", name="Records").wait_for()
    page.keyboard.press("/")
    page.keyboard.type(box.id)
    # Sandboxes of other tests may have ended here, and a short name is the same for all of a host.
    link = page.get_by_title(box.id, exact=True)
    # When the filter has come through, it is the only one.
    expect(page.locator("a[href^='/console/records/']")).to_have_count(1)
    link.focus()
    assert axe_violations(page) == []
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Record").get_by_text("killed on").wait_for()
    page.get_by_role("article", name="Cell 3").get_by_text("same", exact=True).first.wait_for()
    # A guest's page is shown as that of a living sandbox: in a frame, and it runs nothing.
    frame = page.get_by_role("article", name="Cell 1").locator("iframe").content_frame
    assert frame.get_by_text("bold").inner_text() == "bold"
    assert page.evaluate("window.ran") is None
    page.get_by_role("button", name="Run again").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Cell 2 is the first that differs; 2 of 3 did the same.").wait_for()

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert axe_violations(page) == []

    page.get_by_role("button", name="To cell 2").press("Enter")
    assert page.locator("article.chosen").get_attribute("aria-label") == "Cell 2"
    page.get_by_role("tab", name="Commands").focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("tabpanel", name="Commands")
    panel.get_by_text("exit code 3").wait_for()
    # The replay is kept while another tab is looked at, and is not seen there.
    assert not page.get_by_role("button", name="Run again").is_visible()
    panel.locator("summary").press("Enter")
    assert panel.locator("pre").last.inner_text().strip() == "<b>typed</b>"
    assert axe_violations(page) == []
    page.get_by_role("tab", name="Audit").click()
    page.get_by_role("button", name="Verify", exact=True).press("Enter")
    page.get_by_text("Whole:").wait_for()
    # What has ended lives no more: there is nothing to run, to fork or to type into.
    assert page.get_by_role("button", name="Fork").count() == 0
    page.get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("alertdialog").get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("heading", name="Records").wait_for()
    assert box.api.get(f"/v1/records/{box.id}").status_code == 404
