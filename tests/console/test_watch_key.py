"""A key that only watches, in a real browser: it sees what happens, asks for nothing it may not, and cannot act."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer

from .conftest import Box, NewPage, axe_violations

pytestmark = pytest.mark.timeout(180)
_ACTS = (
    "New sandbox",
    "Kill",
    "Checkpoint",
    "Fork",
    "Pause",
    "Resume",
    "Share",
    "Labels",
    "+5 min",
    "Run",
    "Edit",
)


def _log_in(page: Any, token: str) -> None:
    page.get_by_label("Token of the owner, or of a key").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Sandboxes").wait_for()


def test_a_watching_key_sees_all_and_is_offered_nothing(
    new_page: NewPage, box: Box, console_server: RunningServer, api: httpx2.Client
) -> None:
    """Cells live, panels, records; no button or key acts; what it asks is never refused; its end is the login's."""
    box.run("balance = 30")
    assert api.post(f"/v1/sandboxes/{box.id}/checkpoints", json={"name": "start"}).status_code == 201
    ended = Box(api, api.post("/v1/sandboxes", json={}).json()["id"])
    ended.run("print('long ago')")
    api.delete(f"/v1/sandboxes/{ended.id}")
    key = api.post("/v1/keys", json={"name": "looker", "scopes": ["watch"]}).json()
    page = new_page(logged_in=False)
    asked: list[tuple[int, str, str]] = []
    page.on("response", lambda got: asked.append((got.status, got.request.method, got.url)))
    _log_in(page, key["token"])
    asked.clear()
    page.get_by_role("link", name=f"{box.id[:6]}").first.click()
    cell = page.get_by_role("article", name="Cell 1", exact=True)
    cell.wait_for()
    box.run("print('while it is watched')")
    page.get_by_role("article", name="Cell 2", exact=True).get_by_text(
        "while it is watched", exact=True
    ).wait_for()
    page.get_by_text("balance", exact=True).first.wait_for()
    assert page.get_by_role("tab").all_inner_texts() == [
        "Variables",
        "Ports",
        "Network",
        "Audit",
        "Isolation",
    ]

    for name in ("Ports", "Network", "Audit", "Isolation"):
        page.get_by_role("tab", name=name).click()
        page.get_by_role("tabpanel", name=name).wait_for()

    rail = page.get_by_role("region", name="Timeline")
    rail.get_by_text("start").or_(rail.get_by_text("checkpoint")).first.wait_for()
    # Which checkpoints are kept is asked of the guest: the page does not know, and does not say that one is gone.
    assert rail.get_by_text("dropped").count() == 0

    for name in _ACTS:
        assert page.get_by_role("button", name=name).count() == 0, name

    assert page.locator(".cm-editor").count() == 0
    page.keyboard.press("Escape")

    for letter in "cfii":
        page.keyboard.press(letter)

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert axe_violations(page) == []

    page.keyboard.press("g")
    page.keyboard.press("r")
    page.get_by_role("heading", name="Records").wait_for()
    page.get_by_title(ended.id, exact=True).click()
    page.get_by_role("article", name="Cell 1", exact=True).get_by_text("long ago", exact=True).wait_for()
    assert page.get_by_role("button", name="Delete").count() == 0
    assert [one for one in asked if one[0] >= 400 or one[1] != "GET"] == []

    # The control: by the same login, what would act is refused with the scope that it takes.
    refused = page.evaluate(
        """async (id) => {
          const answer = await fetch(`/v1/sandboxes/${id}/executions`, {method: "POST", body: '{"code": "1"}',
            headers: {"X-Fumehood-Console": "1", "Content-Type": "application/json"}});
          return [answer.status, (await answer.json()).detail];
        }""",
        box.id,
    )
    assert refused[0] == 403
    assert "sandboxes" in refused[1]
    page.goto(f"{console_server.url}/console/keys")
    page.get_by_text("This key may not do that", exact=True).wait_for()
    assert axe_violations(page) == []
    api.delete(f"/v1/keys/{key['key']['id']}")
    page.goto(f"{console_server.url}/console/")
    page.get_by_label("Token of the owner, or of a key").wait_for()
