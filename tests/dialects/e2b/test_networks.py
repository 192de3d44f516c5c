"""E2B's words for the network, by its SDK: on servers that allow none, some and all of it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import ALL_TRAFFIC, SandboxException
from e2b_code_interpreter import Sandbox

NAME = "api.example.com"


def network_of(server: Any, sandbox: Sandbox) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/v1/sandboxes/{sandbox.sandbox_id}", headers=server.headers, timeout=60)
    return dict(answer.json()["network"])


@pytest.fixture
def use(start_server, monkeypatch):
    """Starts a server and makes it the one that the SDK speaks to."""

    def start(**flags: Any) -> Any:
        server = start_server(dialects="e2b", pool_size=0, **flags)
        monkeypatch.setenv("E2B_API_URL", server.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
        monkeypatch.setenv("E2B_API_KEY", server.token)
        return server

    return start


@pytest.fixture
def site() -> Iterator[int]:
    """A web site on the loopback; its port."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"page")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_whoever_asks_for_nothing_gets_what_there_is(use):
    """E2B's default is the internet; a server without networks gives none, and says so."""
    server = use(max_network="internet")

    with Sandbox.create(timeout=60) as sandbox:
        assert sandbox.get_info().allow_internet_access is True
        assert network_of(server, sandbox)["internet"] is True

    with Sandbox.create(timeout=60, allow_internet_access=False) as sandbox:
        assert sandbox.get_info().allow_internet_access is False
        sandbox.update_network({"allow_internet_access": True})
        assert sandbox.get_info().allow_internet_access is True
        sandbox.update_network({"deny_out": [ALL_TRAFFIC]})
        assert sandbox.get_info().allow_internet_access is False


def test_rules_become_rules(use, site):
    """What is listed is reached, and the rest is not."""
    server = use(max_network="listed", private_networks="127.0.0.1")
    rules = {"allow_out": [f"127.0.0.1:{site}", NAME], "deny_out": [ALL_TRAFFIC, "evil.example.com"]}

    with Sandbox.create(timeout=60, network=rules) as sandbox:
        shown = network_of(server, sandbox)
        assert (shown["allow"], shown["deny"]) == ([f"127.0.0.1:{site}", NAME], ["evil.example.com"])
        assert shown["internet"] is False
        said = sandbox.commands.run(f"curl -sS --noproxy '' http://127.0.0.1:{site}/")
        assert said.stdout == "page"

        sandbox.update_network({"allow_out": [NAME]})
        assert network_of(server, sandbox)["allow"] == [NAME]


def test_what_a_server_does_not_allow_is_refused(use):
    """Named hosts where there is no network, and addresses of the server's own neighbours."""
    use()

    with pytest.raises(SandboxException, match=r"501.*network rules"):
        Sandbox.create(timeout=60, network={"allow_out": [NAME]})

    use(max_network="listed")

    with pytest.raises(SandboxException, match="403"):
        Sandbox.create(timeout=60, network={"allow_out": ["127.0.0.1"]})

    with Sandbox.create(timeout=60) as sandbox:
        assert sandbox.get_info().allow_internet_access is False


def test_headers_of_rules_are_added_to_requests(use):
    """They become the proxy's secrets for https to that host, and their values are never told."""
    server = use(max_network="listed")
    rules = {NAME: [{"transform": {"headers": {"X-Api-Token": "hidden-value"}}}]}

    with Sandbox.create(timeout=60, network={"allow_out": [NAME], "rules": rules}) as sandbox:
        assert network_of(server, sandbox)["secrets"] == {NAME: {"X-Api-Token": ""}}
        told = sandbox.get_info().network
        assert told["rules"] == {NAME: [{"transform": {"headers": {"X-Api-Token": ""}}}]}
        assert "hidden-value" not in sandbox.commands.run("env; cat /proc/self/environ").stdout

    identity = {NAME: [{"transform": {"headers": {"Authorization": "Bearer ${e2b.identity.tokens.aws}"}}}]}

    for refused in (
        identity,
        {"*.example.com": rules[NAME]},
        {NAME: [{"transform": {"headers": {"Host": "x"}}}]},
    ):
        with pytest.raises(SandboxException, match=r"501|400"):
            Sandbox.create(timeout=60, network={"allow_out": [NAME], "rules": refused})
