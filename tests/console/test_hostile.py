"""What guests print and show cannot run in the page, cannot reach it, and cannot reach the viewer's network.

Each attack has a control: the same in a bare page of another host runs, or arrives.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.waiting import until

from .collectors import Collector
from .conftest import Box, NewPage, guest, settled, show
from .hostile import LOADS, MARKDOWN, REACHES, SCRIPTS, STREAM, STUN

pytestmark = pytest.mark.timeout(180)


def test_the_attacks_work_in_a_bare_page(browser: Any, collector: Collector) -> None:
    """The control: every one of them reaches the collector within the time that the others are given."""
    context = browser.new_context()
    collector.paths.clear()

    for name, html in (LOADS | SCRIPTS).items():
        collector.pages[f"/bare/{name}"] = f"<!doctype html><body>{html.replace('HOST', collector.url)}"

    pages = []

    for name in LOADS | SCRIPTS:
        page = context.new_page()
        page.goto(f"{collector.url}/bare/{name}", wait_until="commit")
        pages.append(page)

    settled(pages[-1], 0.6)
    context.close()
    assert set(LOADS | SCRIPTS) - collector.attacks_seen() == set()


def test_html_of_a_guest_stays_in_its_frame(new_page: NewPage, box: Box, collector: Collector) -> None:
    """Still: it is shown, nothing of it runs, and nothing arrives. Moving: its scripts run, and reach nothing."""
    collector.paths.clear()
    # It would lead the document away before the others have loaded.
    refresh = LOADS["refresh"].replace("HOST", collector.url)
    texts = [*(LOADS | SCRIPTS | {"refresh": ""}).values()]
    marks = "<p id='ran'>still</p><script>document.getElementById('ran').textContent = 'moved'</script>"
    html = marks + "\n".join(texts).replace("HOST", collector.url)
    show(box, "text/html", marks)
    show(box, "text/html", html)
    show(box, "text/html", refresh)
    # What is purified is reported by the page, where nothing of it acts.
    page = new_page(box.address, refusing=("frame-src", "script-src-attr", "base-uri"))
    page.evaluate("window.canary = 'alive'")
    first, second = guest(page, 1), guest(page, 2)
    assert first.locator("#ran").inner_text() == "still"
    assert second.locator("#ran").inner_text() == "still"
    settled(page)
    assert collector.attacks_seen() == set()

    for number in (1, 2):
        page.get_by_role("article", name=f"Cell {number}", exact=True).get_by_role(
            "button", name="Run its scripts"
        ).click()

    # The control of the frame itself: there scripts do run.
    assert first.get_by_text("moved").inner_text() == "moved"
    settled(page)
    assert collector.attacks_seen() == set()
    assert page.evaluate("window.canary") == "alive"
    assert box.address in page.url


def test_a_moving_frame_reaches_nothing_of_the_page(new_page: NewPage, box: Box) -> None:
    """Cookie, storage, the document around it, its own sandbox: refused, one by one; the page goes on."""
    tries = "".join(
        f"try {{ out('{name}: ' + ({code})) }} catch (error) {{ out('{name}: refused') }}\n"
        for name, code in REACHES.items()
    )
    show(
        box,
        "text/html",
        "<pre id='out'></pre><script>const out = (text) => document.getElementById('out').append(text + '\\n');\n"
        f"{tries}parent.postMessage({{fumehood: 'ready'}}, '*'); out('done');</script>",
    )
    page = new_page(box.address)
    page.evaluate("window.canary = 'alive'")
    guest(page, 1)
    page.get_by_role("button", name="Run its scripts").click()
    frame = guest(page, 1)
    frame.get_by_text("done").wait_for()
    lines = frame.locator("#out").inner_text().split("\n")
    assert [line for line in lines if line and not line.endswith(("refused", "done"))] == []
    assert len([line for line in lines if line.endswith("refused")]) == len(REACHES)
    head = page.locator(".guest-head")
    assert "from the sandbox, its scripts run" in head.inner_text()
    assert page.evaluate("window.canary") == "alive"


def test_a_frame_that_never_ends_does_not_hold_the_page(new_page: NewPage, box: Box) -> None:
    """An endless script has a process of its own; a height of a billion pixels is bounded."""
    show(box, "text/html", "<div style='height:1000000000px'>tall</div>")
    show(box, "text/html", "<p>busy</p><script>setTimeout(() => {for (;;);}, 50)</script>")
    page = new_page(box.address)
    guest(page, 1).get_by_text("tall").wait_for()
    height = page.get_by_role("article", name="Cell 1", exact=True).locator("iframe").bounding_box()["height"]
    assert height <= 600
    busy = page.get_by_role("article", name="Cell 2", exact=True)
    busy.get_by_role("button", name="Run its scripts").click()
    settled(page, 0.5)
    # Fifty turns of the page's own loop, while the frame has none.
    turns = page.evaluate(
        "new Promise((done) => {let left = 50; const began = performance.now();"
        "const turn = () => --left ? setTimeout(turn, 1) : done(performance.now() - began); turn();})"
    )
    assert turns < 5_000
    busy.get_by_role("button", name="Stop them").click()


def test_still_frames_send_nothing_by_webrtc(
    new_page: NewPage, browser: Any, box: Box, collector: Collector
) -> None:
    """The way out that no policy stops in a moving frame does not begin in a still one; a bare page is the control."""
    html = STUN.replace("UDP", str(collector.udp_port))
    collector.datagrams()
    show(box, "text/html", f"<p>here</p>{html}")
    page = new_page(box.address)
    guest(page, 1).get_by_text("here").wait_for()
    settled(page)
    assert collector.datagrams() == 0

    collector.pages["/bare/stun"] = html
    context = browser.new_context()
    bare = context.new_page()
    bare.goto(f"{collector.url}/bare/stun")
    settled(bare)
    context.close()
    assert collector.datagrams() > 0


def test_markdown_and_streams_are_text(new_page: NewPage, box: Box, collector: Collector) -> None:
    """Nothing runs, loads, titles or links by itself; a link asks; what is hidden in text is spelled out."""
    collector.paths.clear()
    link = "[a plain link](https://example.org/way)\n\n"
    show(box, "text/markdown", link + MARKDOWN.replace("HOST", collector.url))
    box.run(f"print('{STREAM}')".replace("HOST", collector.url))
    box.run("raise Exception('<img src=x onerror=window.ran=4>\\u202e')")
    # Handlers in what is purified are reported, and do not run.
    page = new_page(box.address, refusing=("script-src-attr",))
    title = page.title()
    markdown = page.locator(".markdown")
    markdown.get_by_text("a plain link").wait_for()
    page.get_by_text("end-of-stream").first.wait_for()
    stream = page.locator(".lines").first.inner_text()
    assert "␛]52;c;" in stream
    assert "<U+202E>" in stream
    assert "␀" in stream
    assert markdown.locator("script, style, form, input, button, svg, iframe, #root, .login").count() == 0
    hrefs = markdown.locator("a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
    assert [href for href in hrefs if href and not href.startswith("https://")] == []
    sources = markdown.locator("img").evaluate_all(
        "(images) => images.map((image) => image.src.slice(0, 11))"
    )
    assert [source for source in sources if not source.startswith("data:image/")] == []

    markdown.get_by_text("a plain link").click()
    question = page.get_by_role("alertdialog")
    question.get_by_text("https://example.org/way").wait_for()
    question.get_by_role("button", name="Stay here").click()
    error = page.get_by_role("article", name="Cell 3", exact=True).locator(".error strong")
    assert "<img src=x onerror=window.ran=4><U+202E>" in error.inner_text()
    assert page.evaluate("window.ran") is None
    assert page.title() == title
    assert len(page.context.pages) == 1
    assert collector.attacks_seen() == set()

    # The control: as markup, in a page without a policy, the same does run.
    collector.pages["/bare/markdown"] = f"<body>{MARKDOWN}"
    context = page.context.browser.new_context()
    bare = context.new_page()
    bare.goto(f"{collector.url}/bare/markdown")
    bare.wait_for_function("window.ran !== undefined")
    context.close()


def test_pictures_tables_and_charts_of_a_guest(new_page: NewPage, box: Box, collector: Collector) -> None:
    """SVG runs and loads nothing; a PNG that is HTML, or is huge, is not shown; odd data is bounded and is text."""
    collector.paths.clear()
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30"><script>parent.ran = 5</script>'
        f'<image href="{collector.url}/svg-load" width="9" height="9"/><text y="20">shown</text></svg>'
    )
    show(box, "image/svg+xml", svg)
    png = (
        "b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR' + (50000).to_bytes(4, 'big') * 2 + b'\\x08\\x02\\0\\0\\0'"
    )
    box.run(
        "import base64\nfrom IPython.display import display\n"
        f"for part in (b'<script>parent.ran = 6</script>', {png}):\n"
        "    display({'image/png': base64.b64encode(part).decode(), 'text/plain': 'x'}, raw=True)"
    )
    names = "{'<img src=x onerror=window.ran=7>\\u202e': [1, None], '__proto__': ['=1+1', '\\x1b[31m']}"
    box.run(
        f"display({{'application/vnd.fumehood.data+json': {names}, 'text/plain': 'x'}}, raw=True)\n"
        "chart = {'type': 'line', 'title': '<b>t</b>', 'elements': [{'label': '\\u202e', "
        "'points': [[i, i] for i in range(20000)] + [['x', 'y'], [1, float('1e308')]]}]}\n"
        "display({'application/vnd.fumehood.chart+json': chart, 'text/plain': 'x'}, raw=True)"
    )
    page = new_page(box.address)
    picture = page.get_by_role("article", name="Cell 1", exact=True).get_by_role("img")
    picture.wait_for()
    until(
        lambda: picture.evaluate("(image) => image.complete && image.naturalWidth === 90"),
        "the picture is loaded",
    )
    second = page.get_by_role("article", name="Cell 2", exact=True)
    second.get_by_text("This is no PNG picture").wait_for()
    second.get_by_text(re.compile("50,000 × 50,000 pixels")).wait_for()
    assert second.locator("img").count() == 0
    third = page.get_by_role("article", name="Cell 3", exact=True)
    third.get_by_role("columnheader", name="<img src=x onerror=window.ran=7><U+202E>").wait_for()
    third.locator("polyline").first.wait_for(state="attached")
    assert third.locator("img, b").count() == 0
    assert page.evaluate("[window.ran, ({}).polluted]") == [None, None]
    assert page.evaluate("Object.prototype.hasOwnProperty('0')") is False
    assert collector.attacks_seen() == set()


def test_frames_cannot_be_had_from_elsewhere(
    new_page: NewPage, browser: Any, console_server: Any, collector: Collector
) -> None:
    """Another site can frame neither the page nor the documents for guests; the page itself frames the latter."""
    frames = "".join(
        f"<iframe src='{console_server.url}{path}' onload='loaded.push(1)'></iframe>"
        for path in ("/console/", "/console/frame", "/console/frame?scripts")
    )
    collector.pages["/bare/framing"] = (
        f"<script>const loaded = []; const ready = []; onmessage = (event) => ready.push(event.data)</script>{frames}"
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{collector.url}/bare/framing")
    page.wait_for_function("loaded.length === 3")
    settled(page, 0.3)
    assert page.evaluate("ready") == []
    assert [frame.url for frame in page.frames[1:] if not frame.url.startswith("chrome-error:")] == []
    context.close()
