"""Ports of sandboxes by their host names, as E2B's clients choose them: public, private, with another Host header."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from e2b import SandboxException
from e2b_code_interpreter import Sandbox

ECHO = """
import http.server

class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Echo).serve_forever()
"""


@pytest.fixture(scope="module")
def public(tmp_path_factory, addresses) -> Any:
    """A server with a domain, whose owner has made ports public."""
    from tests.conftest import RunningServer

    folder = tmp_path_factory.mktemp("public") / "state"
    server = RunningServer(folder, dialects="e2b", pool_size=1, domain="boxes.test", public_ports="true")
    yield server
    server.stop()


@pytest.fixture
def opened(public, eventually):
    """Makes a sandbox with a server inside, and returns it with a way to ask for its ports by their names."""
    made: list[Sandbox] = []

    def make(**network: Any) -> tuple[Sandbox, Any]:
        sandbox = Sandbox.create(
            timeout=300, network=network, api_url=public.url, sandbox_url=public.url, api_key=public.token
        )
        made.append(sandbox)
        sandbox.files.write("echo.py", ECHO)
        sandbox.commands.run("exec python3 echo.py", background=True, timeout=0)

        def get(port: int = 3000, **headers: str) -> httpx.Response:
            return httpx.get(public.url, headers={"Host": sandbox.get_host(port), **headers}, timeout=60)

        token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
        eventually(lambda: get(**token).status_code == 200)
        return sandbox, get

    yield make

    for sandbox in made:
        sandbox.kill()


def test_a_port_is_public_unless_its_sandbox_wants_it_private(opened):
    """`allow_public_traffic=False` holds where all others are public, and is told."""
    sandbox, get = opened(allow_public_traffic=False)
    missing = get()
    wrong = get(**{"e2b-traffic-access-token": "0" * 64})
    assert (missing.status_code, missing.json()["code"]) == (403, 403)
    assert (wrong.status_code, wrong.json()["sandboxId"]) == (403, sandbox.sandbox_id)
    assert missing.json()["message"].endswith("missing")
    assert wrong.json()["message"].endswith("wrong")
    # Nothing is said of what is behind it.
    assert get(3999).status_code == 403
    assert sandbox.get_info().network["allow_public_traffic"] is False

    other, get = opened(allow_public_traffic=True)
    assert get().status_code == 200
    assert other.get_info().network["allow_public_traffic"] is True


def test_a_server_inside_sees_the_host_that_was_chosen(opened, public, headers_of):
    """By host name and by headers, with the port in its place; a value that is no host name is refused."""
    sandbox, get = opened(mask_request_host="custom-host.example.com:${PORT}")
    assert get().text == "custom-host.example.com:3000"
    by_headers = httpx.get(public.url, headers=headers_of(sandbox, 3000), timeout=60)
    assert by_headers.text == "custom-host.example.com:3000"
    assert sandbox.get_info().network["mask_request_host"] == "custom-host.example.com:${PORT}"
    assert opened()[1]().text == "localhost:3000"

    for wrong in ("a b", "a\r\nX: y", "a/b", "${HOST}", "x" * 300):
        with pytest.raises(SandboxException, match="maskRequestHost"):
            opened(mask_request_host=wrong)


def test_what_is_not_there_is_said_as_e2b_says_it(opened, public):
    """Closed ports, sandboxes that have ended and names of none: 502, in the form that E2B's clients read."""
    sandbox, get = opened()
    closed = {
        "sandboxId": sandbox.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 3999,
        "code": 502,
    }
    assert (get(3999).status_code, get(3999).json()) == (502, closed)
    sandbox.kill()
    dead = {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502}
    assert (get().status_code, get().json()) == (502, dead)
    unknown = httpx.get(public.url, headers={"Host": f"3000-{'a' * 20}.boxes.test"}, timeout=60)
    assert (unknown.status_code, unknown.json()) == (502, {**dead, "sandboxId": "a" * 20})
