"""The network of a sandbox: what its rules name is reached, what they do not is refused and written down."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from fumehood import InvalidArgumentError, Network, SandboxClosedError

NAME = "news.example"


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><h1 class='title'>Fumes held in</h1><p>one</p><p>two</p></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """A web site on the loopback of this machine; its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def listed(port: int) -> Network:
    return Network(allow=[f"{NAME}:{port}", f"127.0.0.1:{port}"], hosts={NAME: "127.0.0.1"})


def test_without_a_network_the_way_to_get_one_is_reported(face, sandbox):
    """The code's own error says it, and the attempt is written down."""
    execution = sandbox.run_code("import urllib.request\nurllib.request.urlopen('http://example.com/')")
    assert "this sandbox has no network; make it with network=" in str(execution.error)
    assert sandbox.get_info().network == Network()
    (record,) = sandbox.egress_log()
    assert (record.name, record.port, record.verdict) == ("example.com", 80, "denied")
    assert record.sandbox_id == sandbox.id


def test_a_page_is_scraped(face, site):
    """requests fetches it by a name of the policy's own, BeautifulSoup reads it."""
    sandbox = face.open(network=listed(site))
    execution = sandbox.run_code(
        "import requests\nfrom bs4 import BeautifulSoup\n"
        f"page = requests.get('http://{NAME}:{site}/today', timeout=10)\n"
        "soup = BeautifulSoup(page.text, 'html.parser')\n"
        "soup.h1.text, [p.text for p in soup.find_all('p')]"
    )
    assert execution.text == "('Fumes held in', ['one', 'two'])", execution.error
    info = sandbox.get_info()
    assert info.network == listed(site)
    assert any("egress proxy" in layer.why for layer in info.isolation.layers if layer.name == "network")
    (record,) = sandbox.egress_log()
    assert (record.verdict, record.address, record.rule) == ("allowed", "127.0.0.1", f"{NAME}:{site}")
    assert record.bytes_received > 100


@pytest.mark.parametrize(
    "command",
    [
        "curl -sS http://{place}/",
        "curl -sS -p http://{place}/",
        "curl -sS --socks5-hostname 127.0.0.1:3128 http://{place}/",
        "python3 -c \"import urllib.request as u; print(u.urlopen('http://{place}/').read())\"",
        "python3 -c \"import requests; s = requests.Session(); print([s.get('http://{place}/').text for _ in 'ab'])\"",
    ],
)
def test_programs_find_the_way_by_themselves(face, site, command):
    """By the variables that they heed anyway."""
    sandbox = face.open(network=listed(site))
    result = sandbox.commands.run(command.format(place=f"{NAME}:{site}"))
    assert "Fumes held in" in result.stdout


def test_aiohttp_finds_the_way(face, site):
    """It heeds the variables when it is told to trust them."""
    sandbox = face.open(network=listed(site))
    execution = sandbox.run_code(
        "import aiohttp\n"
        "async with aiohttp.ClientSession(trust_env=True) as session:\n"
        f"    async with session.get('http://{NAME}:{site}/') as answer:\n"
        "        print(answer.status)\n"
    )
    assert execution.logs.stdout == ["200\n"], execution.error


def test_servers_inside_are_reached_without_the_proxy(face, sandbox):
    """What listens on the sandbox's own loopback is nobody's business."""
    execution = sandbox.run_code(
        "import http.server, threading, urllib.request\n"
        "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "for name in ('127.0.0.1', 'localhost'):\n"
        "    print(urllib.request.urlopen(f'http://{name}:{server.server_address[1]}/').status)\n"
    )
    assert "".join(execution.logs.stdout) == "200\n200\n"
    assert sandbox.egress_log() == []


def test_the_network_of_a_living_sandbox_changes(face, sandbox, site):
    """In both directions, while its variables stay where they are."""
    fetch = f"import urllib.request\nurllib.request.urlopen('http://{NAME}:{site}/').status"
    sandbox.run_code("kept = 41")
    assert sandbox.run_code(fetch).error is not None
    sandbox.set_network(listed(site))
    assert sandbox.run_code(fetch).text == "200"
    assert sandbox.get_info().network.level == "listed"
    sandbox.set_network("none")
    assert sandbox.run_code(fetch).error is not None
    assert sandbox.run_code("kept + 1").text == "42"
    first, second, *rest = [record.verdict for record in sandbox.egress_log()]
    # The allowed connection may still have been closing when it was denied.
    assert (first, second, set(rest)) == ("denied", "allowed", {"denied"})


def test_secrets_are_given_and_not_shown(face, site):
    """What is shown has their names; given back, they keep their values."""
    place = f"http://{NAME}:{site}"
    network = Network(
        allow=[f"{NAME}:{site}", f"127.0.0.1:{site}"],
        hosts={NAME: "127.0.0.1"},
        secrets={place: {"Authorization": "Bearer hush"}},
    )
    sandbox = face.open(network=network)
    shown = sandbox.get_info().network
    assert shown.secrets == {place: {"Authorization": ""}}
    assert shown == network.without_secrets()
    sandbox.set_network(shown)
    assert sandbox.run_code(f"import requests; requests.get('{place}/').status_code").text == "200"


def test_a_paused_sandbox_tells_its_log(face, sandbox):
    """And its network is changed when it runs."""
    sandbox.run_code("import urllib.request\nurllib.request.urlopen('http://example.com/')")
    sandbox.pause()
    assert len(sandbox.egress_log()) == 1


def test_an_ended_sandbox_has_no_network(face, sandbox):
    """As with every verb."""
    sandbox.kill()

    with pytest.raises(SandboxClosedError):
        sandbox.egress_log()

    with pytest.raises(SandboxClosedError):
        sandbox.set_network("none")


def test_what_cannot_be_read_is_refused(face, sandbox):
    """Before anything is done."""
    for wrong in ("all", 7, ["http://example.com"]):
        with pytest.raises(InvalidArgumentError):
            sandbox.set_network(wrong)

    with pytest.raises(InvalidArgumentError):
        face.open(network="public")
