"""N02 to N14, X13: with a network, a sandbox reaches what its rules name, through the proxy, and nothing else.

The parts that need thousands of tries are in `tests/unit/egress`; here the guest is a real one. Servers run on the
loopback of this machine, which a rule has to name: what is refused is looked for at them.
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fumehood import InvalidArgumentError, Limits, Network, Sandbox
from fumehood.engine.egress import LiveEgress

LOOPBACK = "127.0.0.1"
NAME = "api.example.com"
PROXY = "http://127.0.0.1:3128"


class Web(http.server.ThreadingHTTPServer):
    """A web server on the loopback that keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, location: str | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.location = location
        super().__init__((LOOPBACK, 0), _Handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        body = json.dumps({"headers": dict(self.headers), "path": self.path}).encode()
        self.send_response(302 if self.server.location else 200)

        if self.server.location:
            self.send_header("Location", self.server.location)

        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def other() -> Iterator[Web]:
    server = Web()
    yield server
    server.shutdown()
    server.server_close()


def listed(*servers: Web, name: str = NAME, **more: Any) -> Network:
    """A network in which a name is these servers."""
    ports = [server.port for server in servers]
    allow = [rule for port in ports for rule in (f"{name}:{port}", f"{LOOPBACK}:{port}")]
    return Network(allow=allow, hosts={name: LOOPBACK}, **more)


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def run(sandbox: Sandbox, code: str) -> str:
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout).strip()


TALK = """
import socket
def talk(data, wait=5):
    with socket.create_connection(('127.0.0.1', 3128), timeout=wait) as s:
        said = b''
        try:
            s.sendall(data)  # the proxy may answer and close before it has all
        except OSError:
            pass
        try:
            while piece := s.recv(65536):
                said += piece
        except OSError:
            pass
        return said
"""
FETCH = """
import urllib.request, urllib.error
def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.reason
    except OSError as error:
        return 0, str(error)
"""


def test_n02_there_is_no_way_around_the_proxy(make, web, canary):
    """With a network, nothing is changed about routes, resolvers and raw sockets; the proxy is the only way."""
    attacked = make(network=listed(web))
    elsewhere = [("tcp", "192.0.2.1", 80), ("tcp", "2001:db8::1", 443), ("udp", "192.0.2.1", 443)]
    elsewhere += [("udp", "192.0.2.1", 53), ("tcp", "192.0.2.1", 53), ("tcp", LOOPBACK, web.port)]

    for kind in ("context", "command"):
        said = attacked.probe(kind, "go_out", elsewhere)
        assert "ok" not in {answer for answer, _ in said.values()}, said
        found = attacked.probe(kind, "interfaces")
        assert (found["names"], found["routes"]) == (["lo"], [])

    names = f"import socket\ntry: print(socket.getaddrinfo('{canary}.test', 80))\nexcept OSError: print('no')"
    assert attacked.run(names) == "no\n"
    assert web.asked == []

    # The control: the same server, by the proxy.
    assert run(attacked.sandbox, FETCH + f"print(fetch('http://{NAME}:{web.port}/')[0])") == "200"
    assert len(web.asked) == 1


def test_n02_without_the_variables_there_is_no_network(box, web):
    """They are a convenience: a program that does not heed them reaches nothing."""
    box.set_network(listed(web))
    code = f"import os\nfor name in list(os.environ):\n    if 'proxy' in name.lower(): del os.environ[name]\n{FETCH}"
    said = run(
        box, code + f"print(fetch('http://{NAME}:{web.port}/'), fetch('http://{LOOPBACK}:{web.port}/'))"
    )
    assert said.count("(0, ") == 2
    assert web.asked == []


def test_n03_n05_only_what_is_listed_passes(box, web, other):
    """Other names, other ports, other addresses of the same server are refused, by name."""
    box.set_network(listed(web))
    refused = [
        f"http://evil.example.com:{web.port}/",
        f"http://{NAME}.evil.com:{web.port}/",
        f"http://x.{NAME}:{web.port}/",
        f"http://{NAME}:{other.port}/",
        f"http://{NAME}:22/",
        f"http://{NAME}:25/",
        f"http://{LOOPBACK}:{other.port}/",
        f"http://127.0.0.2:{web.port}/",
        f"http://0.0.0.0:{web.port}/",
        f"http://[::1]:{web.port}/",
        f"http://[::ffff:127.0.0.1]:{web.port}/",
        f"http://2130706433:{web.port}/",
        f"http://0x7f.1:{web.port}/",
    ]
    # Also those that lie on the loopback: the sandbox's own would be asked directly.
    code = f"{FETCH}\nimport os\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
    said = run(box, code + f"print([fetch(url)[0] for url in {refused!r}])")
    assert set(json.loads(said)) <= {400, 403}
    assert (web.asked, other.asked) == ([], [])
    assert {record.verdict for record in box.egress_log()} == {"denied"}
    assert run(box, f"print(fetch('http://{NAME.upper()}.:{web.port}/')[0])") == "200"


def test_n04_odd_names_do_not_reach_the_resolver(box, web):
    """In CONNECT, in absolute form and by SOCKS; what is written down is visible and bounded."""
    box.set_network(listed(web))
    odd = [
        f"{NAME}\\0.evil.com",
        f"{NAME}%00.evil.com",
        f"user@{NAME}",
        f"{NAME}\\t",
        "0177.0.0.1",
        "１２７.0.0.1",
    ]
    code = f"""{TALK}
said = []
for name in {odd!r}:
    name = name.encode().decode('unicode_escape').encode('utf-8')
    said.append(talk(b'CONNECT %s:{web.port} HTTP/1.1\\r\\n\\r\\n' % name)[:12].decode())
    said.append(talk(b'GET http://%s:{web.port}/ HTTP/1.1\\r\\n\\r\\n' % name)[:12].decode())
    said.append(talk(b'\\x05\\x01\\x00\\x05\\x01\\x00\\x03' + bytes((len(name),)) + name + b'\\x00\\x50')[3:4].hex())
print(set(said))
"""
    said = run(box, code)
    assert "200" not in said
    assert "'00'" not in said
    assert web.asked == []
    assert all(record.name.isprintable() and len(record.name) <= 200 for record in box.egress_log())


def test_n09_the_host_and_its_neighbours_are_out_of_reach(web):
    """Even where everything public is allowed: by address, by name, and by a redirect."""
    with Sandbox(network="internet") as box:
        targets = [
            "169.254.169.254",
            "[fd00:ec2::254]",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "10.0.0.1",
        ]
        targets += ["192.168.0.1", "[fe80::1]", "metadata.google.internal", "localhost", "127.0.0.1"]
        targets += [socket.gethostbyname(socket.gethostname())]
        code = f"{FETCH}\nimport os\nos.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
        said = run(box, code + f"print([fetch(f'http://{{name}}/')[0] for name in {targets!r}])")
        assert set(json.loads(said)) == {403}

        # The web's ports at this machine's own address: nothing public.
        code = f"print(fetch('http://{LOOPBACK}:80/'), fetch('https://{LOOPBACK}/'))"
        assert "200" not in run(box, code)

    web.location = "http://169.254.169.254/latest/meta-data/"

    with Sandbox(network=listed(web)) as box:
        assert run(box, FETCH + f"print(fetch('http://{NAME}:{web.port}/')[0])") == "403"
        assert [record.name for record in box.egress_log()] == [NAME, "169.254.169.254"]
        assert len(web.asked) == 1


def test_n09_a_private_address_behind_a_listed_name_is_not_dialled(box, web):
    """The name alone lists no address that is not public; nor does a network that holds it among others."""
    for allow in ([f"{NAME}:{web.port}"], [f"{NAME}:{web.port}", f"127.0.0.0/8:{web.port}"]):
        box.set_network(Network(allow=allow, hosts={NAME: LOOPBACK}))
        assert run(box, FETCH + f"print(fetch('http://{NAME}:{web.port}/')[0])") == "403"

    assert web.asked == []
    box.set_network(listed(web))
    assert run(box, f"print(fetch('http://{NAME}:{web.port}/')[0])") == "200"


def test_n11_one_connection_is_one_request(box, web, other):
    """What comes behind it, in whatever disguise, reaches no server."""
    box.set_network(listed(web, other))
    first = f"GET http://{NAME}:{web.port}/first HTTP/1.1\\r\\nHost: {NAME}:{web.port}\\r\\n"
    second = f"GET http://{NAME}:{other.port}/second HTTP/1.1\\r\\nHost: {NAME}:{other.port}\\r\\n\\r\\n"
    code = f"""{TALK}
talk(b'{first}\\r\\n{second}')
talk(b'{first}Content-Length: 0\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{second}')
talk(b'{first}Content-Length: 5\\r\\n\\r\\nhello{second}')
talk(b'{first}X: y\\r\\n z\\r\\n\\r\\n{second}')
talk(b'GET http://{NAME}:{web.port}/first HTTP/1.1\\r\\nHost: {NAME}:{other.port}\\r\\n\\r\\n')
"""
    run(box, code)
    assert {path for path, _ in web.asked} <= {"/first"}
    assert other.asked == []


def test_n12_a_policy_that_cannot_be_read_gives_no_sandbox(box, web):
    """Neither a new one, nor another policy for one that lives: it keeps the one that it had."""
    for wrong in ("everything", "", ["http://example.com"], True, {"allow": ["a.com"]}):
        with pytest.raises(InvalidArgumentError):
            Sandbox(network=wrong)  # type: ignore[arg-type]

        with pytest.raises(InvalidArgumentError):
            box.set_network(wrong)  # type: ignore[arg-type]

    with pytest.raises(InvalidArgumentError):
        Network(allow=["*"])

    # Shown secrets have no values; they cannot be given to another sandbox as if they had.
    shown = listed(web, secrets={f"http://{NAME}:{web.port}": {"X-Key": ""}})

    with pytest.raises(InvalidArgumentError):
        box.set_network(shown)

    said = run(box, FETCH + f"print(fetch('http://{NAME}:{web.port}/'))")
    assert "this sandbox has no network" in said
    assert web.asked == []


def test_n12_a_change_takes_hold_at_once(box, web):
    """Also of a connection that is open: a tunnel ends in the middle."""
    box.set_network(listed(web))
    run(
        box,
        f"{TALK}\ns = socket.create_connection(('127.0.0.1', 3128))\n"
        f"s.sendall(b'CONNECT {NAME}:{web.port} HTTP/1.1\\r\\n\\r\\n')\nassert b' 200 ' in s.recv(4096)",
    )
    box.set_network("none")
    assert run(box, "print(s.recv(4096))") == "b''"
    assert box.egress_log()[-1].verdict == "denied"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_port_of_the_proxy_is_taken_before_user_code_runs(box, address):
    """Nobody inside can take it and play the proxy to the others, with whatever options."""
    code = f"""
import socket
family = socket.AF_INET6 if ':' in {address!r} else socket.AF_INET
taken = False
for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        if option: s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind(({address!r}, 3128)); s.listen()
            with socket.create_connection(('127.0.0.1', 3128)) as c:
                s.settimeout(0.2)
                try:
                    s.accept(); taken = True
                except TimeoutError:
                    pass
        except OSError:
            pass
print(taken)
"""
    assert run(box, code) == "False"


def test_n13_thousands_of_connections_are_a_matter_of_their_sandbox(box, web):
    """They wait, a few at a time; another sandbox runs as before, and nothing is left on the host."""
    box.set_network(listed(web))

    with Sandbox() as peer:
        run(peer, "1")
        flood = box.commands.run(
            [
                "python3",
                "-c",
                "import socket, time\n"
                "held = []\n"
                "for _ in range(900):\n"
                "    s = socket.socket(); s.setblocking(False)\n"
                "    s.connect_ex(('127.0.0.1', 3128)); held.append(s)\n"
                "print(len(held), flush=True); time.sleep(60)",
            ],
            background=True,
        )
        assert [run(peer, f"print({number})") for number in range(50)] == [
            str(number) for number in range(50)
        ]
        flood.kill()

    # Those that have gone make room for others.
    assert run(box, FETCH + f"print(fetch('http://{NAME}:{web.port}/')[0])") == "200"
    box.kill()
    _until(lambda: LiveEgress._all_carried == 0)


def test_n13_what_a_guest_says_of_the_proxy_is_bounded(box):
    """Heads without end, and heads that never end, cost a connection and no more."""
    code = f"""{TALK}
said = talk(b'GET http://a.com/ HTTP/1.1\\r\\n' + b'A: ' + b'b' * 2_000_000)
print(said[:12])
"""
    assert run(box, code) in ("b'HTTP/1.1 400'", "b''")


def test_n14_a_secret_is_nowhere_in_the_sandbox(box, web, other, canary):
    """The bound server gets it; environment, files, memory of own processes and other servers do not."""
    place = f"http://{NAME}:{web.port}"
    box.set_network(listed(web, other, secrets={place: {"X-Api-Key": canary}}))
    code = f"print(fetch('http://{NAME}:{web.port}/')[0], fetch('http://{NAME}:{other.port}/')[1].count('{canary[:8]}'))"
    assert run(box, FETCH + code) == "200 0"
    assert web.asked[-1][1]["X-Api-Key"] == canary
    assert "X-Api-Key" not in other.asked[-1][1]

    half = len(canary) // 2
    looked_for = (canary[:half], canary[half:])
    code = f"""
import os, re
word = {looked_for[0]!r} + {looked_for[1]!r}
found = []
for path in ('/proc/self/environ', '/proc/1/environ'):
    if os.access(path, os.R_OK) and word.encode() in open(path, 'rb').read(): found.append(path)
for folder, _, files in os.walk('/home/user'):
    for name in files:
        if word.encode() in open(os.path.join(folder, name), 'rb').read(): found.append(name)
found += [name for name, text in os.environ.items() if word in text]
print(found)
"""
    assert run(box, code) == "[]"
    info = box.get_info()
    assert canary not in repr(info)
    assert canary not in str(info.network.secrets)
    assert canary not in repr(box.egress_log())

    # What was shown can be given back, with the secret that it had.
    box.set_network(info.network)
    run(box, f"print(fetch('http://{NAME}:{web.port}/')[0])")
    assert web.asked[-1][1]["X-Api-Key"] == canary


def test_x13_what_the_host_closes_stays_closed(box, web):
    """When the proxy's side of a connection ends there is no other path; the next connection is served again."""
    box.set_network(listed(web))
    web.shutdown()
    web.server_close()
    said = run(box, FETCH + f"print(fetch('http://{NAME}:{web.port}/'))")
    assert said.startswith("(502, ")
    assert box.egress_log()[-1].verdict == "allowed"


def test_every_decision_is_written_down(box, web):
    """When, by whom, where to, by which rule, and how much of it."""
    box.set_network(listed(web))
    run(box, FETCH + f"fetch('http://{NAME}:{web.port}/'); fetch('https://evil.example.com/')")
    good, bad = box.egress_log()
    assert (good.sandbox_id, good.kind, good.name, good.address) == (box.id, "http", NAME, LOOPBACK)
    assert (good.port, good.verdict, good.rule) == (web.port, "allowed", f"{NAME}:{web.port}")
    assert good.bytes_sent > 0
    assert good.bytes_received > 0
    assert (bad.kind, bad.name, bad.port, bad.verdict, bad.address) == (
        "connect",
        "evil.example.com",
        443,
        "denied",
        None,
    )
    assert "not allowed" in bad.rule
    assert bad.at >= good.at


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20

    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_r08_a_sandbox_without_descriptors_refuses_and_lives_on(make, web):
    """More connections than init may have files: those on top are closed, and later ones are served again."""
    one = make(network=listed(web), limits=Limits(open_files=64)).sandbox
    code = """
import socket
held = []
for _ in range(300):
    s = socket.socket(); s.setblocking(False)
    try:
        s.connect_ex(('127.0.0.1', 3128)); held.append(s)
    except OSError: break
"""
    one.files.write("flood.py", f"{code}\nprint(len(held), flush=True)\nimport time; time.sleep(60)")
    flood = one.commands.run(
        ["bash", "-c", "for i in 1 2 3 4 5 6; do python3 flood.py & done; wait"], background=True
    )
    run(one, "import time; time.sleep(1)")
    flood.kill()
    _until(lambda: run(one, FETCH + f"print(fetch('http://{NAME}:{web.port}/')[0])") == "200")
