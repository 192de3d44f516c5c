"""What browsers get: the page of the API, and answers for pages of allowed origins."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2

from .ends import client_of, new_sandbox, run

Start = Callable[..., Any]
ORIGIN = "https://app.example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def test_swagger_ui_loads_from_the_server_alone(server: Any) -> None:
    """The page, its script and its style are there without a token, and the policy allows no other source."""
    with httpx2.Client(base_url=server.url, timeout=60) as browser:
        assert browser.get("/openapi").headers["location"] == "openapi/"
        page = browser.get("/openapi/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert not re.search(r"https?:|unsafe-eval", policy + page.text)
        assert not re.search(r"<script>|on[a-z]+=", page.text)

        for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            found = browser.get(f"/openapi/{path}")
            assert found.status_code == 200, path
            assert found.headers["content-security-policy"] == policy

        assert "SwaggerUIBundle" in browser.get("/openapi/swagger-ui-bundle.js").text
        assert browser.get("/openapi/main.py").status_code == 404
        assert browser.get("/openapi/..%2fmain.py").status_code == 404


def test_pages_of_allowed_origins_may_call(start_server: Start) -> None:
    """The preflight, the answer and a refusal name the origin; cookies are not allowed with them."""
    server = start_server(pool_size=0, dialects="", allowed_origins=ORIGIN)

    with client_of(server) as api:
        asked = httpx2.options(f"{server.url}/v1/execute", headers=PREFLIGHT)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        answer = api.post("/v1/execute", json={"code": "print(1)"}, headers={"Origin": ORIGIN})
        refused = httpx2.get(f"{server.url}/v1/info", headers={"Origin": ORIGIN})

        for one in (asked, answer, refused):
            assert one.headers["access-control-allow-origin"] == ORIGIN
            assert "access-control-allow-credentials" not in one.headers

        assert (answer.status_code, refused.status_code) == (200, 401)
        other = api.get("/v1/info", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        strange = api.post("/v1/execute", json={"code": "1"}, headers={"Origin": "https://evil.example"})
        assert strange.status_code == 403


def test_no_page_may_call_by_default(server: Any) -> None:
    """Without the setting no answer says that a page may read it."""
    asked = httpx2.options(f"{server.url}/v1/execute", headers=PREFLIGHT)
    assert asked.status_code in (404, 405)
    assert not [name for name in asked.headers if name.startswith("access-control")]


# Answers a preflight by itself, as servers with pages of their own do.
GUESTS = """
import http.server, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_OPTIONS(self):
        self.send_response(204)
        self.send_header("Access-Control-Allow-Origin", "https://guest.example")
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


def test_servers_in_sandboxes_answer_preflights_themselves(start_server: Start) -> None:
    """An origin that may call the server is not thereby one that may read what a guest serves."""
    server = start_server(pool_size=0, dialects="", allowed_origins=ORIGIN, domain="box.example")

    with client_of(server) as api:
        name = new_sandbox(api)
        assert run(api, name, GUESTS)["error"] is None
        signed = api.post(f"/v1/sandboxes/{name}/ports/8000/sign", json={"expires_in_seconds": 60}).json()
        by_host = {"Host": f"8000-{name}.box.example", **server.headers}

        for url, headers in ((signed["url"], {}), (server.url, by_host)):
            asked = httpx2.options(url, headers={**PREFLIGHT, **headers})
            assert asked.headers.get("access-control-allow-origin") == "https://guest.example"
            answer = httpx2.get(url, headers={"Origin": ORIGIN, **headers})
            assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (200, False)
