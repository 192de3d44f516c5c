"""What guests serve and show cannot become a document or a script of the console's origin, nor lead a frame away.

Each has a control: the same without the wall runs, or arrives.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.conftest import RunningServer
from tests.waiting import until

from .collectors import Collector
from .conftest import Box, NewPage, guest, settled, show

pytestmark = pytest.mark.timeout(180)

# A guest's web server: a script, and a page that uses it in each way that a page of its own may.
_SERVED = """
import http.server, threading

PAGE = b'''<!doctype html><link rel="stylesheet" href="x.css"><p id="p">served</p>
<script src="x.js"></script><script type="module">import "./m.js"</script>'''
FILES = {
    "/": ("text/html", PAGE),
    "/x.js": ("text/javascript", b"window.ran = origin; document.documentElement.setAttribute('ran', origin)"),
    "/m.js": ("text/javascript", b"window.moduleRan = origin"),
    "/x.css": ("text/css", b"#p { color: rgb(1, 2, 3) }"),
}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, body = FILES.get(self.path, ("text/plain", b""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Access-Control-Allow-Origin", "null")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
_SCRIPT = """
(source) => new Promise((done) => {
  const script = document.createElement("script");
  script.src = source;
  script.onload = () => done(window.ran);
  script.onerror = () => done("refused");
  document.documentElement.append(script);
})
"""


def _served(box: Box) -> str:
    """Has the guest serve, and returns a signed address of it."""
    box.run(_SERVED)
    answer = box.api.post(f"/v1/sandboxes/{box.id}/ports/8000/sign", json={})
    assert answer.status_code == 200, answer.text
    address: str = answer.json()["url"]
    return address


# From a page of the guest's own host: each way in which a page can ask, with what it brings.
_ASKED = """
async ([home, id]) => {
  const routes = ["/v1/me", "/v1/sandboxes", `/v1/sandboxes/${id}`, "/v1/keys", "/v1/settings", "/console/"];
  const found = [];
  for (const route of routes)
    for (const mode of ["cors", "no-cors"])
      for (const method of ["GET", "POST"]) {
        const given = {mode, method, credentials: "include"};
        const answer = await fetch(home + route, given).then((it) => it.type + it.status, () => "refused");
        if (!["refused", "opaque0"].includes(answer)) found.push(`${mode} ${method} ${route}: ${answer}`);
      }
  const marked = await fetch(home + "/v1/me", {credentials: "include", headers: {"X-Fumehood-Console": "1"}})
    .then((it) => it.status, () => "refused");
  if (marked !== "refused") found.push(`with the header: ${marked}`);
  const socket = await new Promise((done) => {
    const made = new WebSocket(home.replace("http", "ws") + "/v1/watch", "fumehood.watch");
    made.onopen = () => done("open");
    made.onerror = () => done("refused");
  });
  if (socket !== "refused") found.push(`socket: ${socket}`);
  const frame = document.createElement("iframe");
  frame.src = home + "/console/";
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; setTimeout(done, 3000); });
  document.cookie = "fumehood-console=TOSSED; domain=localhost; path=/";
  return found;
}
"""


def test_a_page_of_a_port_has_nothing_of_the_login(
    browser: Any, start_server: Callable[..., RunningServer]
) -> None:
    """At `{port}-{id}.DOMAIN`, the console's own site: no request, socket or frame of it counts as logged in."""
    server = start_server(domain="localhost", public_ports="true", pool_size=0)
    home = server.url.replace("127.0.0.1", "localhost")

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as api:
        box = Box(api, api.post("/v1/sandboxes", json={}).json()["id"])
        box.run(_SERVED)
        code = api.post("/v1/login/codes").json()["code"]
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{home}/console/#login={code}")
        page.get_by_role("heading", name="Sandboxes").wait_for()
        assert (
            page.evaluate("fetch('/v1/me', {headers: {'X-Fumehood-Console': '1'}}).then((it) => it.status)")
            == 200
        ), "the control: the page itself is logged in"
        guests = context.new_page()
        asked = []
        guests.on("request", lambda request: asked.append(request.url))
        port = urlsplit(home).port
        guests.goto(f"http://8000-{box.id}.localhost:{port}/")
        guests.wait_for_function("window.moduleRan")
        assert guests.evaluate(_ASKED, [home, box.id]) == []
        assert any(url.endswith("/v1/keys") for url in asked), "it has asked"
        framed = next(frame for frame in guests.frames if frame.parent_frame is not None)
        assert framed.locator("#root").count() == 0
        # A planted cookie of the same name opens nothing, and does no more than end the login of this browser.
        status = page.evaluate(
            "fetch('/v1/me', {headers: {'X-Fumehood-Console': '1'}}).then((it) => it.status)"
        )
        assert status in (200, 401)
        assert api.get("/v1/keys").json()["items"] == []
        assert [one["id"] for one in api.get("/v1/sandboxes").json()["items"]] == [box.id]
        context.close()


def test_a_picture_opened_alone_is_no_document_of_the_console(new_page: NewPage, box: Box) -> None:
    """An SVG in a new tab may run its script, in an origin of its own; as a `blob:` it would be one of ours."""
    address = _served(box)
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30">'
        f'<script href="{address}x.js"/><text y="20">shown</text></svg>'
    )
    show(box, "image/svg+xml", svg)
    page = new_page(box.address)
    picture = page.get_by_role("article", name="Cell 2", exact=True).get_by_role("img")
    picture.wait_for()
    alone = page.context.new_page()
    alone.goto(picture.get_attribute("src"))
    assert alone.locator("text").text_content() == "shown"
    assert alone.evaluate("origin") == "null"

    # The control, and the second wall: as a document of our origin it loads no script of a guest.
    blob = page.evaluate(
        "(svg) => URL.createObjectURL(new Blob([svg], {type: 'image/svg+xml'}))",
        svg,
    )
    alone.goto(blob)
    assert alone.evaluate("origin") == f"http://{urlsplit(page.url).netloc}"
    settled(alone, 0.5)
    assert alone.evaluate("document.documentElement.getAttribute('ran')") is None


def test_what_a_guest_serves_is_no_script_of_our_origin(new_page: NewPage, box: Box) -> None:
    """Refused to documents of ours, also to one without a policy; a page of the guest itself has all of it."""
    address = _served(box)
    page = new_page("/v1/health")
    assert page.evaluate("origin") == f"http://{urlsplit(page.url).netloc}"
    assert page.evaluate(_SCRIPT, f"{address}x.js") == "refused"

    page.goto(address)
    page.wait_for_function("window.moduleRan")
    assert page.evaluate("[origin, ran, moduleRan]") == ["null", "null", "null"]
    assert page.evaluate("getComputedStyle(p).color") == "rgb(1, 2, 3)"


def test_still_html_connects_to_nothing_and_stays(
    new_page: NewPage, browser: Any, box: Box, collector: Collector
) -> None:
    """A hint to connect, and a way to a guest's page, by itself or by a script: taken out, or refused."""
    address = _served(box)
    # This browser connects by no hint in a private window: that none is left is what can be seen.
    hint = f'<link rel="preconnect" href="{collector.url}"><link rel="dns-prefetch" href="{collector.url}">'
    refresh = f'<meta http-equiv="refresh" content="0;url={address}">'
    leave = f"<script>setTimeout(() => {{location = {address!r}}}, 50)</script>"
    style = "<html><head><style>#T td {color: rgb(1, 2, 3)}</style></head><body><table id=T class=dataframe>"
    show(box, "text/html", f"<p>hinted</p>{hint}")
    show(box, "text/html", f"{refresh}{style}<tr><td style='text-align:right'>styled</table>{refresh}")
    show(box, "text/html", leave)
    page = new_page(box.address, refusing=("frame-src",))
    hinted = page.get_by_role("article", name="Cell 2", exact=True)
    guest(page, 2).get_by_text("hinted").wait_for()
    assert guest(page, 2).locator("link").count() == 0
    hinted.get_by_role("button", name="Run its scripts").click()
    guest(page, 2).get_by_text("hinted").wait_for()
    assert guest(page, 2).locator("link").count() == 2, "the control: with its scripts it has them"
    cell = guest(page, 3).get_by_text("styled")
    assert cell.evaluate("(td) => [getComputedStyle(td).color, td.style.textAlign]") == [
        "rgb(1, 2, 3)",
        "right",
    ]
    page.get_by_role("article", name="Cell 4", exact=True).get_by_role(
        "button", name="Run its scripts"
    ).click()
    # The refusal shows that its script ran.
    # The page's policy allows no text as code, which `wait_for_function` needs when it has to wait.
    until(
        lambda: page.evaluate("window.violations.some((found) => found.startsWith('frame-src'))"),
        "the page's policy refuses",
    )
    settled(page)
    assert not any("/p/" in frame.url for frame in page.frames)
    assert cell.is_visible()

    # The controls.
    context = browser.new_context()
    bare = context.new_page()
    collector.pages["/bare/leave"] = refresh
    collector.pages["/bare/hint"] = hint
    collector.pages["/bare/leaving"] = "<iframe sandbox='allow-scripts' src='/bare/leave'></iframe>"
    bare.goto(f"{collector.url}/bare/leaving")
    bare.frame_locator("iframe").get_by_text("served").wait_for()
    context.close()


def test_markdown_is_bounded_as_pictures_are(new_page: NewPage, box: Box) -> None:
    """A picture within the text has the bounds of one beside it, an SVG is none; of a long text the rest is text."""

    def png(side: int) -> str:
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
        return f"data:image/png;base64,{base64.b64encode(head).decode()}"

    svg = f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}"
    lines = "*last*\n\n" * 25_000
    show(
        box,
        "text/markdown",
        f"![small]({png(3)}) ![huge]({png(30_000)}) ![vector]({svg}) <img src='{svg}'>\n\n{lines}",
    )
    page = new_page(box.address)
    cell = page.get_by_role("article", name="Cell 1", exact=True)
    markdown = cell.locator(".markdown")
    markdown.get_by_text("not shown: 30000 × 30000 pixels").wait_for()
    assert markdown.locator("img").evaluate_all("(all) => all.map((image) => image.alt)") == ["small"]
    assert markdown.get_by_text("it is no PNG and no JPEG").count() > 0
    assert 1_000 < markdown.locator("em").count() < 3_000
    cell.get_by_text("characters are shown as Markdown; here is the rest").wait_for()
    assert "*last*" in cell.locator(".plain-text").inner_text()
