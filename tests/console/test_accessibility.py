"""Each view of the console in each state, in both colours and two widths: axe finds nothing, and all of it fits.

`make test` has the views as they are with content, in one colour; the whole matrix is `make test-console`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from tests.conftest import RunningServer

from .conftest import NewPage, axe_violations

pytestmark = pytest.mark.timeout(900)

# One pass over the views stands for all of them.
_IS_EVERY = "EVERY_CASE" in os.environ

_CODE = (
    "import pandas as pd, matplotlib.pyplot as plt\nfrom IPython.display import HTML, JSON, Markdown, display\n"
    "frame = pd.DataFrame({'city': ['Berlin', None], 'heat': [3, 1]})\n"
    "plt.plot([1, 2], [4, 5], label='speed'); plt.title('Speeds'); plt.show()\n"
    "display(frame, HTML('<b>bold</b>'), JSON({'a': [1]}), Markdown('# Title\\n\\n[link](https://example.org)'))\n"
    "for i in range(60): print('\\x1b[3%dmline %d\\x1b[0m' % (i % 8, i))\nopen('note.txt', 'w').write('hello')"
)
_PROBLEM = {
    "title": "no room",
    "detail": "there is no room for another",
    "hint": "wait for one to end",
    "code": "capacity",
    "request_id": "abc",
}


@dataclass(frozen=True)
class Filled:
    """What the views show.

    Attributes:
        box: A sandbox in which code ran.
        bare: A sandbox in which none did.
        paused: A sandbox that is paused.
        ended: A sandbox whose record is kept.
    """

    box: str
    bare: str
    paused: str
    ended: str


@pytest.fixture(scope="module")
def filled(console_server: RunningServer) -> Iterator[Filled]:
    """A server with something of everything."""
    with httpx2.Client(base_url=console_server.url, headers=console_server.headers, timeout=60) as api:
        made = [api.post("/v1/sandboxes", json={"metadata": {"task": "see"}}).json()["id"] for _ in range(4)]
        box, bare, paused, ended = made

        for code in (_CODE, "frame['heats']"):
            api.post(f"/v1/sandboxes/{box}/executions", json={"code": code, "tell_changes": True})

        api.post(f"/v1/sandboxes/{box}/checkpoints", json={"name": "start"})
        api.post(
            f"/v1/sandboxes/{box}/executions",
            json={"code": "frame.loc[0, 'heat'] = 9; input('who? ')", "detached": True, "allow_input": True},
        )
        api.post(f"/v1/sandboxes/{ended}/executions", json={"code": "print('long ago')"})
        api.delete(f"/v1/sandboxes/{ended}")
        api.post(f"/v1/sandboxes/{paused}/pause", json={})
        api.post("/v1/shares", json={"sandbox_id": bare, "shows": ["record"]})
        key = api.post("/v1/keys", json={"name": "team", "policy": {"executions_per_day": 5}}).json()
        yield Filled(*made)

        for name in (box, bare, paused):
            api.delete(f"/v1/sandboxes/{name}")

        api.delete(f"/v1/keys/{key['key']['id']}")


def _views(of: Filled) -> dict[str, str]:
    box = f"sandboxes/{of.box}"
    panels = ("variables", "files", "terminal", "ports", "network", "audit", "isolation")
    return {
        "list": "sandboxes",
        "overview": "overview",
        **{name: f"{box}?panel={name}" for name in panels},
        "bare": f"sandboxes/{of.bare}",
        "paused": f"sandboxes/{of.paused}",
        "gone": f"sandboxes/{of.ended}",
        "compare": f"{box}/compare",
        "branches": f"{box}/branches",
        "records": "records",
        "record": f"records/{of.ended}",
        "keys": "keys",
        "usage": "usage",
        "queue": "queue",
        "server": "server",
        "shares": "shares",
        "nowhere": "no-such-page",
    }


def _empty(route: Any) -> None:
    # Lists have nothing in them; the rest is as it is.
    answer = route.fetch()
    try:
        body = answer.json()
    except json.JSONDecodeError:
        route.fulfill(response=answer)
        return

    if isinstance(body, dict) and "items" in body:
        body |= {"items": [], "next_cursor": None}

    route.fulfill(response=answer, json=body)


def _refuse(status: int) -> Callable[[Any], None]:
    def answer(route: Any) -> None:
        route.fulfill(
            status=status,
            headers={"Retry-After": "30", "Content-Type": "application/problem+json"},
            body=json.dumps(_PROBLEM | {"status": status}),
        )

    return answer


def _never(route: Any) -> None:
    """Leaves a request without an answer."""


_STATES: dict[str, Callable[[Any], None] | None] = {
    "full": None,
    "empty": _empty,
    "problem": _refuse(503),
    "refused": _refuse(403),
    "loading": _never,
}


@pytest.mark.parametrize("scheme", ["light", "dark"] if _IS_EVERY else ["light"])
@pytest.mark.parametrize("state", _STATES if _IS_EVERY else ["full"])
@pytest.mark.parametrize("width", [1280, 375] if _IS_EVERY else [1280])
def test_every_view_is_accessible(
    new_page: NewPage, filled: Filled, state: str, scheme: str, width: int
) -> None:
    """WCAG 2.2 AA as far as a program can see it; one main heading; nothing is wider than the page."""
    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.get_by_role("heading", name="Sandboxes").wait_for()
    found: dict[str, list[str]] = {}

    if (answer := _STATES[state]) is not None:
        page.route(lambda url: "/v1/" in url and not url.endswith(("/v1/me", "/v1/watch")), answer)

    for name, path in _views(filled).items():
        page.goto(page.url.partition("/console/")[0] + f"/console/{path}")
        page.locator("main").wait_for()
        _settle(page)

        if width < 900 and "panel=" in path and page.get_by_role("button", name="Inspect").count():
            page.get_by_role("button", name="Inspect").click()
            page.get_by_role("dialog").wait_for()
            _settle(page)

        faults = axe_violations(page)

        main = page.locator("h1:not([aria-level])").evaluate_all("(all) => all.map((one) => one.outerHTML)")

        if len(main) > 1:
            faults.append(f"more than one main heading: {main}")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            faults.append(f"wider than {width} pixels")
        if faults:
            found[name] = faults

    page.unroute_all(behavior="ignoreErrors")
    assert found == {}


def _settle(page: Any) -> None:
    """Waits until the page has not changed for a moment."""
    page.evaluate(
        """() => new Promise((done) => {
          const give = () => { observer.disconnect(); clearTimeout(last); done(); };
          let still = setTimeout(give, 250);
          const last = setTimeout(give, 3000);
          const observer = new MutationObserver(() => { clearTimeout(still); still = setTimeout(give, 250); });
          observer.observe(document.body, {subtree: true, childList: true});
        })"""
    )
