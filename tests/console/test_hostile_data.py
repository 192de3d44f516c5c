"""Results and streams that want the page to stop: too deep, too wide, too many, or of another kind than they say.

Where the browser must be shown to do what a test holds it back from, a control does the same in a bare page. Storms,
floods and data of odd shape have none: their tests say that the page goes on.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from tests.waiting import until

from .collectors import Collector
from .conftest import Box, NewPage, guest, settled, show
from .hostile import MUTATIONS

pytestmark = pytest.mark.timeout(180)

_DISPLAY = "from IPython.display import display\n"
_ODD = "<b>\\u202e\\x1b[31m"
_SEEN = "<b><U+202E>␛[31m"


def _cell(page: Any, number: int) -> Any:
    return page.get_by_role("article", name=f"Cell {number}", exact=True)


def _shows(box: Box, code: str) -> None:
    ran = box.run(_DISPLAY + code)
    assert ran["error"] is None, ran["error"]


def _answers(page: Any) -> float:
    """Returns after how many milliseconds the page takes a turn of its loop, at worst of five."""
    took: float = page.evaluate(
        """async () => {
          let worst = 0;
          for (let turn = 0; turn < 5; turn += 1) {
            const begun = performance.now();
            await new Promise((done) => setTimeout(done, 0));
            worst = Math.max(worst, performance.now() - begun);
          }
          return worst;
        }"""
    )
    return took


def test_a_result_that_cannot_be_shown_takes_nothing_else_along(new_page: NewPage, box: Box) -> None:
    """One whose rendering fails is replaced by a sentence; the cells around it, and the rest of the page, stay."""
    chart = {
        "type": "line",
        "x_scale": "datetime",
        "title": "far",
        "elements": [{"label": "a", "points": [[1e300, 1], [2e300, 2]]}],
    }
    # The control: this is what the page would do with the value of the first tick.
    _shows(
        box,
        f"display({{'application/vnd.fumehood.chart+json': {chart}, 'text/plain': 'in words'}}, raw=True)\n"
        "display({'text/markdown': '> ' * 20_000 + 'deep', 'text/plain': 'x'}, raw=True)\n"
        "display({'text/markdown': '- ' * 20_000 + 'deep', 'text/plain': 'x'}, raw=True)\n"
        "display({'text/markdown': '*a ' * 20_000, 'text/plain': 'x'}, raw=True)\n",
    )
    box.run("print('after it')")
    page = new_page(box.address)
    with pytest.raises(Exception, match="Invalid time value"):
        page.evaluate("new Date(1e300).toISOString()")

    _cell(page, 2).get_by_text("after it", exact=True).wait_for()
    _cell(page, 1).locator(".result").nth(3).wait_for()
    page.get_by_role("textbox", name="Code to run").wait_for()
    assert _answers(page) < 1_000
    page.get_by_role("tab", name="Isolation").click()
    page.get_by_text("It runs as a user that owns nothing on this machine.").wait_for()


def test_values_that_are_deep_wide_or_many_are_bounded(new_page: NewPage, box: Box) -> None:
    """JSON a thousand deep and of many values, ten thousand columns, many points, names of a prototype."""
    show(box, "application/json", "[" * 1_000 + "0" + "]" * 1_000)
    page = new_page(box.address)
    # So deep a value is no JSON of a result any more: its text is.
    _cell(page, 1).locator(".result").get_by_text("x", exact=True).wait_for()
    _shows(
        box,
        "display({'application/json': {'__proto__': {'polluted': 1}, 'many': list(range(200_000))}, "
        "'text/plain': 'x'}, raw=True)",
    )
    _cell(page, 2).locator(".result").get_by_role("button", name="characters more").wait_for()
    assert page.evaluate("[({}).polluted, [].polluted]") == [None, None]
    _shows(
        box,
        "columns = {f'c{i}': [i] for i in range(10_000)}\n"
        "display({'application/vnd.fumehood.data+json': columns, 'text/plain': 'x'}, raw=True)",
    )
    grid = _cell(page, 3)
    grid.get_by_text("10,000 columns, 9,900 of them not shown").wait_for()
    assert grid.get_by_role("columnheader").count() <= 101
    _shows(
        box,
        "points = [[i, (i * 7919) % 1000] for i in range(100_000)] + [[1, float('nan')], [float('inf'), 2]]\n"
        "chart = {'type': 'scatter', 'title': '"
        + _ODD
        + "', 'elements': [{'label': 'a', 'points': points}]}\n"
        "display({'application/vnd.fumehood.chart+json': chart, 'text/plain': 'x'}, raw=True)",
    )
    drawn = _cell(page, 4).locator("svg[role=img]")
    drawn.wait_for()
    # Fewer than were given, and none of those that are no numbers.
    assert 1_000 < drawn.locator("circle").count() <= 5_000
    assert _answers(page) < 1_000


def test_storms_of_updates_leave_the_page_its_turns(new_page: NewPage, box: Box) -> None:
    """A display that is updated, and an output that is cleared, thousands of times: it is bounded, and said."""
    page = new_page(box.address)
    page.get_by_text("Nothing ran here yet.").wait_for()
    answer = box.api.post(
        f"/v1/sandboxes/{box.id}/executions",
        json={
            "code": "from IPython.display import clear_output, display\n"
            "for i in range(3_000):\n    print('cleared', i)\n    clear_output()\n"
            "handle = display('first', display_id='<b>id')\n"
            "for i in range(3_000): handle.update(f'update {i}')\n"
            "print('at the end')",
            "detached": True,
        },
    )
    assert answer.status_code == 202, answer.text
    _cell(page, 1).wait_for()
    assert _answers(page) < 1_000
    _cell(page, 1).get_by_text("ok", exact=False).first.wait_for()
    _cell(page, 1).get_by_text("at the end", exact=True).wait_for()
    _cell(page, 1).locator(".result").get_by_text(re.compile(r"update \d+")).wait_for()
    _cell(page, 1).get_by_text("results were dropped").wait_for()


def test_pictures_that_are_bombs_or_broken(new_page: NewPage, box: Box, collector: Collector) -> None:
    """Entities that would grow to gigabytes, HTML within SVG, a PNG that ends early: shown as nothing, or as a word."""
    collector.paths.clear()
    entities = "".join(
        f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' if n else '<!ENTITY e0 "xxxxxxxxxx">' for n in range(10)
    )
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text>&e9;</text></svg>'
    bomb = f"<!DOCTYPE svg [{entities}]>{svg}"
    foreign = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30"><foreignObject width="90" height="30">'
        f'<body xmlns="http://www.w3.org/1999/xhtml"><img src="{collector.url}/foreign"/>'
        f'<script>new Image().src = "{collector.url}/foreign-script"</script></body></foreignObject></svg>'
    )
    show(box, "image/svg+xml", bomb)
    show(box, "image/svg+xml", foreign)
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (9).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    show(box, "image/png", base64.b64encode(head).decode())
    page = new_page(box.address)
    _cell(page, 2).get_by_role("img").wait_for()
    settled(page)
    assert _answers(page) < 1_000
    assert collector.attacks_seen() == set()
    # The control: as a document of its own, the second one loads.
    collector.pages["/bare/foreign"] = f"<!doctype html><body>{foreign}"
    context = page.context.browser.new_context()
    bare = context.new_page()
    bare.goto(f"{collector.url}/bare/foreign")
    until(lambda: "foreign" in collector.attacks_seen(), "the control arrives")
    context.close()


def test_markup_that_changes_as_it_is_read_again(new_page: NewPage, box: Box, collector: Collector) -> None:
    """What a careless purifier lets through: in Markdown and in still HTML nothing of it runs."""
    texts = [text.replace("RAN", f"parent.ran='{name}'") for name, text in MUTATIONS.items()]
    for text in texts:
        show(box, "text/markdown", f"seen\n\n{text}")

    show(box, "text/html", "<p>seen</p>" + "\n".join(texts))
    page = new_page(box.address, refusing=("script-src-attr",))
    guest(page, len(texts) + 1).get_by_text("seen").first.wait_for()

    for number in range(len(texts)):
        _cell(page, number + 1).locator(".markdown").get_by_text("seen").first.wait_for()

    settled(page, 0.5)
    assert page.evaluate("window.ran") is None

    # The control: each runs behind a purifier that takes out scripts and handlers, and writes what is left.
    careless = """(text) => {
      const made = new DOMParser().parseFromString(text, "text/html");
      for (const each of made.querySelectorAll("*")) {
        if (each.localName === "script") each.remove();
        for (const {name} of [...each.attributes]) if (name.startsWith("on")) each.removeAttribute(name);
      }
      document.body.innerHTML = made.body.innerHTML;
    }"""
    context = page.context.browser.new_context()
    bare = context.new_page()
    collector.pages["/bare/empty"] = "<body>"
    missed = []

    for name, text in MUTATIONS.items():
        bare.goto(f"{collector.url}/bare/empty")
        bare.evaluate(careless, text.replace("RAN", "window.ran=1"))
        bare.wait_for_timeout(50)

        if bare.evaluate("window.ran") != 1:
            missed.append(name)

    context.close()
    assert missed == []


def test_names_of_a_guest_are_text_everywhere(new_page: NewPage, box: Box) -> None:
    """Prompts, exceptions, labels, variables, contexts: what is hidden is spelled out, and nothing is markup."""
    odd = "<b>\u202e\x1b[31m"
    assert box.api.patch(f"/v1/sandboxes/{box.id}", json={"metadata": {"odd": odd}}).status_code == 200
    box.run(f"raise type('{_ODD}', (Exception,), {{}})('{_ODD}')")
    box.run(f"globals()['{_ODD}'] = '{_ODD}'")
    page = new_page(f"{box.address}?panel=variables")
    error = _cell(page, 1).locator(".error strong")
    error.wait_for()
    assert error.inner_text().endswith(f": {_SEEN}")
    answer = box.api.post(
        f"/v1/sandboxes/{box.id}/executions",
        json={"code": f"input('{_ODD}')", "detached": True, "allow_input": True},
    )
    assert answer.status_code == 202
    page.get_by_text(_SEEN).last.wait_for()
    page.get_by_label(_SEEN).fill("x")
    page.keyboard.press("Enter")
    _cell(page, 3).get_by_text("ok").wait_for()
    page.get_by_text("<U+202E>").first.wait_for()
    assert page.locator("main b").count() == 0


def test_a_false_login_gets_no_focus_and_stands_in_its_border(new_page: NewPage, box: Box) -> None:
    """A guest's form with a field that wants the focus: it is labelled as the sandbox's, and keys go elsewhere."""
    form = "<h1>Log in</h1><form><input id=token autofocus><button>Log in</button></form>"
    show(box, "text/html", form)
    show(
        box,
        "text/html",
        f"{form}<script>document.getElementById('token').focus(); document.title='x'</script>",
    )
    page = new_page(box.address)
    guest(page, 1).get_by_text("Log in").first.wait_for()
    _cell(page, 2).get_by_role("button", name="Run its scripts").press("Enter")
    guest(page, 2).get_by_text("Log in").first.wait_for()
    settled(page, 0.5)
    assert page.evaluate("document.activeElement.localName") != "iframe"
    page.keyboard.type("secret")
    for number in (1, 2):
        head = _cell(page, number).locator(".guest-head")
        assert "from the sandbox" in head.inner_text()
        border = page.locator(".guest").nth(number - 1).evaluate("(e) => getComputedStyle(e).borderTopStyle")
        assert border != "none"
        assert (
            guest(page, number).locator("input").evaluate_all("(all) => all.map((e) => e.value).join('')")
            == ""
        )


def test_frames_that_flood_or_forge_messages(new_page: NewPage, box: Box) -> None:
    """A frame that claims to be another, hands over ports, and posts ten thousand times: the page goes on."""
    show(box, "text/html", "<p id=mine>first</p>")
    show(
        box,
        "text/html",
        "<p>second</p><script>const channel = new MessageChannel();\n"
        "for (let i = 0; i < 10_000; i++) parent.postMessage({fumehood: 'ready', height: 1e9, html: '<b>'}, '*');\n"
        "for (const frame of [...Array(parent.frames.length).keys()])\n"
        "  parent.frames[frame].postMessage({html: '<b>forged</b>'}, '*', [new MessageChannel().port2]);\n"
        "</script>",
    )
    page = new_page(box.address)
    guest(page, 1).get_by_text("first").wait_for()
    _cell(page, 2).get_by_role("button", name="Run its scripts").click()
    guest(page, 2).get_by_text("second").wait_for()
    settled(page, 0.5)
    assert guest(page, 1).locator("body").inner_text().strip() == "first"
    assert _answers(page) < 1_000
