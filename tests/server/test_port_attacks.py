"""A guest that serves HTTP, and means harm to the server, to browsers that see its pages, and to programs that call it.

What it answers is any bytes at all: the address says which. Every header that is kept away has one beside it that
passes.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.asyncio.client import connect

GUEST = """
import hashlib, socket, threading

left = threading.Event()
here = threading.Event()

def serve(conn):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        more = conn.recv(65536)
        if not more:
            return
        data += more
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    path = head.split()[1].decode()
    if path.startswith("/raw/"):
        conn.sendall(bytes.fromhex(path[5:].partition("?")[0]))
    elif path == "/head":
        text = head + b"\\r\\n"
        conn.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(text) + text)
    elif path == "/interim":
        while True:
            conn.sendall(b"HTTP/1.1 103 Early Hints\\r\\nLink: </x>\\r\\n\\r\\n" * 100)
    elif path == "/endless":
        conn.sendall(b"HTTP/1.1 200 OK\\r\\n")
        while True:
            conn.sendall(b"X-One: of many\\r\\n" * 1000)
    elif path == "/early":
        lines = [line.lower().split() for line in head.split(b"\\r\\n")]
        size = int(next(words[1] for words in lines if words[0] == b"content-length:"))
        conn.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n")
        while len(body) < size and (more := conn.recv(65536)):
            body += more
        conn.sendall(hashlib.sha256(body).hexdigest().encode())
    elif path == "/silent":
        here.set()
        conn.recv(1)
        left.set()
    elif path == "/here":
        conn.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\n\\r\\n%d" % here.wait(20))
    elif path == "/left":
        conn.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\n\\r\\n%d" % left.wait(20))
    conn.close()

def tried(conn):
    try:
        serve(conn)
    except OSError:
        pass

listener = socket.create_server(("127.0.0.1", 8000), backlog=100)
def accept():
    while True:
        threading.Thread(target=tried, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
"""

# A WebSocket server that sends what it was told in its address, as it is, after the handshake.
FRAMES = """
import base64, hashlib, socket, threading

def speak(conn):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += conn.recv(4096)
    key = next(l.split(b": ")[1] for l in data.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    conn.sendall(b"HTTP/1.1 101 X\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: "
                 + accept + b"\\r\\n\\r\\n")
    if data.startswith(b"GET /fragments"):
        conn.sendall(b"\\x01\\x01a" + b"\\x00\\x00" * 200_000 + b"\\x80\\x01b")
    conn.recv(1)

frames = socket.create_server(("127.0.0.1", 8001))
def take():
    while True:
        threading.Thread(target=speak, args=(frames.accept()[0],), daemon=True).start()
threading.Thread(target=take, daemon=True).start()
"""


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def base(client: httpx2.Client) -> str:
    """Where a hostile guest serves."""
    made = client.post("/v1/sandboxes", json={"timeout_seconds": 600})
    path = f"/v1/sandboxes/{made.json()['id']}"
    ran = client.post(f"{path}/executions", json={"code": GUEST + FRAMES})
    assert ran.json()["error"] is None, ran.text
    return f"{path}/ports/8000"


@pytest.fixture(scope="module")
def signed(client: httpx2.Client, base: str) -> str:
    """The same for browsers."""
    url = client.post(f"{base}/sign", json={"expires_in_seconds": 600}).json()["url"]
    return urlsplit(str(url)).path.rstrip("/")


def raw(*lines: str, body: str = "", status: str = "200 OK") -> str:
    """The path of an answer of these bytes."""
    text = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", body])
    return "/raw/" + text.encode("latin-1").hex()


@pytest.mark.parametrize(
    "line",
    [
        'Clear-Site-Data: "cookies", "storage"',
        "Strict-Transport-Security: max-age=99999999; includeSubDomains",
        'Alt-Svc: h3="evil.test:443"',
        'NEL: {"report_to": "x", "max_age": 99999}',
        'Report-To: {"group": "x", "endpoints": [{"url": "https://evil.test/"}]}',
        "Service-Worker-Allowed: /",
        "Set-Cookie: _xsrf=mine; Path=/",
        "Set-Cookie2: _xsrf=mine; Version=1",
        "Set-Login: logged-in",
        "Accept-CH: Sec-CH-UA-Model",
        'WWW-Authenticate: Basic realm="your token, please"',
        "Connection: X-Between, keep-alive\r\nX-Between: neighbours",
        "Keep-Alive: timeout=99999",
    ],
)
def test_w06_what_holds_for_a_whole_origin_ends_here(client: httpx2.Client, base: str, line: str) -> None:
    """The server's origin is not the guest's: no cookie, no cache, no policy of it may come from there."""
    answer = client.get(base + raw(line, "X-Own: passes", "Content-Length: 2", body="hi"))
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (200, "hi", "passes")

    for name in (part.partition(":")[0] for part in line.split("\r\n")):
        assert name.lower() not in answer.headers, name


def test_w06_what_protects_a_browser_is_ours(client: httpx2.Client, base: str) -> None:
    """A guest cannot take our headers' places; its own policy can only add to ours."""
    answer = client.get(
        base
        + raw(
            "Content-Type: text/html",
            "X-Content-Type-Options: sniff",
            "Content-Security-Policy: sandbox allow-same-origin allow-scripts",
            "Cross-Origin-Resource-Policy: unsafe",
            "X-Request-ID: forged",
            "Content-Length: 2",
            body="hi",
        )
    )
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("cross-origin-resource-policy") == ["cross-origin"]
    assert answer.headers.get_list("x-request-id") != ["forged"]
    assert len(answer.headers.get_list("x-request-id")) == 1
    policies = answer.headers.get_list("content-security-policy")
    assert [policy for policy in policies if "sandbox" in policy and "allow-same-origin" not in policy]


@pytest.mark.parametrize(
    ("site", "wanted", "status"),
    [
        *[
            ("same-origin", wanted, 403)
            for wanted in ("script", "style", "worker", "sharedworker", "serviceworker")
        ],
        # A page of the guest itself, whose origin is opaque; the address opened; a picture or data of it.
        ("cross-site", "script", 200),
        ("none", "document", 200),
        ("same-origin", "document", 200),
        ("same-origin", "image", 200),
        ("same-origin", "empty", 200),
    ],
)
def test_w06_nothing_of_a_guest_is_a_part_of_our_pages(
    client: httpx2.Client, base: str, signed: str, site: str, wanted: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": wanted}

    for address in (base, signed):
        assert client.get(f"{address}/head", headers=headers).status_code == status


def test_w06_one_origin_may_read(client: httpx2.Client, signed: str) -> None:
    lines = ("Access-Control-Allow-Origin: https://evil.test", "Access-Control-Allow-Credentials: true")
    answer = client.get(signed + raw(*lines, "Content-Length: 0"), headers={"Origin": "null"})
    assert answer.headers.get_list("access-control-allow-origin") == ["null"]


def test_w06_cookies_of_ours_do_not_go_in(client: httpx2.Client, signed: str) -> None:
    """In our own origin a guest can have none, so those of a browser there are ours."""
    answer = httpx2.get(
        client.base_url.join(f"{signed}/head"),
        headers={
            "Cookie": "fumehood-jupyter=secret; _xsrf=secret",
            "X-Forwarded-Prefix": "/evil",
            "X-Own": "1",
        },
        timeout=60,
    )
    assert "secret" not in answer.text
    assert "/evil" not in answer.text
    assert "x-own: 1" in answer.text


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v1/keys", "{base}/v1/keys"),
        ("../../../../../v1/keys", "{base}/v1/keys"),
        ("/%2e%2E/%2e%2e/v1/keys", "{base}/v1/keys"),
        ("//{host}/v1/keys", "{base}/v1/keys"),
        ("\\\\{host}\\v1\\keys", "{base}/v1/keys"),
        ("http://{host}/v1/keys", "{base}/v1/keys"),
        ("http://x:y@{host}/v1/keys?a=1#b", "{base}/v1/keys?a=1#b"),
        ("http://localhost:8000/login", "{base}/login"),
        ("/login", "{base}/login"),
        ("{base}/login?next=/", "{base}/login?next=/"),
        ("{base}/../8001/x", "{base}{parent}/8001/x"),
        ("https://example.org/x", "https://example.org/x"),
        ("?page=2", None),
    ],
)
def test_a_redirect_leads_to_the_guest_again(
    client: httpx2.Client, server: Any, base: str, location: str, expected: str | None
) -> None:
    """A program that follows redirects with its token must not be led to other routes by a guest."""
    host = server.url.removeprefix("http://")
    words = {"base": base, "host": host, "parent": base.rpartition("/")[0]}
    path = raw(f"Location: {location.format(**words)}", "Content-Length: 0", status="307 Temporary Redirect")
    answer = client.delete(base + path, follow_redirects=False)
    assert answer.status_code == 307
    wanted = f"{base}{path}?page=2" if expected is None else expected.format(**words)
    assert answer.headers["location"] == wanted


@pytest.mark.parametrize(
    "answer",
    [
        raw("Transfer-Encoding: chunked", "Content-Length: 3", body="5\r\nabcde\r\n0\r\n\r\n"),
        raw("Content-Length: 3", status="204 No Content"),
        raw("Content-Length: 3", status="304 Not Modified"),
    ],
    ids=["both", "204", "304"],
)
def test_w08_two_lengths_are_never_passed_on(client: httpx2.Client, base: str, answer: str) -> None:
    """And the next request of the same connection gets its own answer."""
    got = client.get(base + answer)
    assert got.status_code in (200, 204, 304)
    assert got.text == ("abcde" if got.status_code == 200 else "")
    assert got.headers.get("content-length") in (None, "0")
    assert client.get("/v1/info").status_code == 200


@pytest.mark.parametrize(
    "answer",
    [
        raw("Content-Length: 0", status="999 Odd"),
        raw("Content-Length: 0", status="600 Odd"),
        raw("Content-Length: 0", status="101 Switching"),
        raw("Content-Length: 3", "Content-Length: 4", body="abcd"),
        raw("Transfer-Encoding: gzip, chunked", body="0\r\n\r\n"),
        raw("Content-Length: 99999999999999999999999", body="x"),
    ],
    ids=["999", "600", "101", "two lengths", "coding", "number"],
)
def test_w08_odd_answers_are_a_bad_gateway_or_break_off(
    client: httpx2.Client, base: str, answer: str
) -> None:
    """Never a fault of ours, and never taken for the whole."""
    try:
        got = client.get(base + answer)
    except httpx2.RemoteProtocolError:
        return

    assert (got.status_code, got.json().get("code")) == (502, "bad_gateway")


def test_w08_a_header_that_no_server_may_send_is_left_out(client: httpx2.Client, base: str) -> None:
    answer = client.get(base + raw("X-Odd: a\x01b", "X-Own: 1", "Content-Length: 0"))
    assert (answer.status_code, answer.headers.get("x-odd"), answer.headers["x-own"]) == (200, None, "1")


@pytest.mark.parametrize("path", ["interim", "endless"])
def test_w08_heads_of_a_guest_end(client: httpx2.Client, base: str, path: str) -> None:
    answer = client.get(f"{base}/{path}")
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_gateway")


def test_a_body_arrives_though_the_answer_has_begun(client: httpx2.Client, base: str) -> None:
    """Whoever looks whether the client has gone must not take its body."""
    body = bytes(range(256)) * 20_000
    assert client.post(f"{base}/early", content=body).text == hashlib.sha256(body).hexdigest()


def test_x11_a_client_that_goes_is_noticed(client: httpx2.Client, server: Any, base: str) -> None:
    """Though the server inside never answers."""
    host, port = server.url.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), 30) as gone:
        head = (
            f"GET {base}/silent HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        )
        gone.sendall(head.encode())
        assert client.get(f"{base}/here").text == "1"

    assert client.get(f"{base}/left").text == "1"


@pytest.mark.parametrize("named", ["content-length", "host", "x-forwarded-prefix, authorization"])
def test_w08_what_a_client_calls_hop_by_hop(client: httpx2.Client, base: str, named: str) -> None:
    """It takes away no header that the message needs, and makes none of ours go in."""
    body = b"0123456789"
    sent = {"Connection": f"close, {named}"}
    answer = client.post(f"{base}/early", content=body, headers=sent)
    assert answer.text == hashlib.sha256(body).hexdigest()
    seen = client.get(f"{base}/head", headers=sent).text.lower()
    assert "host: localhost:8000" in seen
    assert f"x-forwarded-prefix: {base}" in seen
    assert "authorization" not in seen


def test_w08_fragments_without_content_are_one_message(server: Any, base: str) -> None:
    """Hundreds of thousands of them cost no more than what they hold."""
    address = server.url.replace("http", "ws") + base.replace("8000", "8001")

    async def read() -> str | bytes:
        async with connect(f"{address}/fragments", additional_headers=server.headers) as socket:
            return await asyncio.wait_for(socket.recv(), 30)

    assert asyncio.run(read()) == "ab"


def test_w08_a_websocket_by_an_absolute_target(server: Any, base: str) -> None:
    """It is refused before anything of it is put together with an address of ours."""
    host, port = server.url.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), 30) as odd:
        odd.sendall(
            f"GET http://evil.test{base}/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"Authorization: Bearer {server.token}\r\nE2b-Sandbox-Id: x\r\nE2b-Sandbox-Port: 8000\r\n\r\n".encode()
        )
        assert odd.recv(4096).split()[1] in (b"400", b"401", b"403", b"404", b"422")


def test_controls_of_this_page(client: httpx2.Client, base: str) -> None:
    """The guest is there and says what it is told to."""
    answer = client.get(base + raw("X-Own: 1", "Content-Length: 2", body="hi"))
    assert (answer.status_code, answer.text, answer.headers["x-own"]) == (200, "hi", "1")


@pytest.mark.parametrize("path", ["/fragments#x", "/fragments?a=1#b", "/#"])
def test_w08_a_websocket_path_with_a_fragment_is_refused(client: httpx2.Client, base: str, path: str) -> None:
    """It is no part of what a server is asked; it ends in a refusal and not in a fault of ours."""
    place = f"{base.rpartition('/')[0]}/8001"
    url = client.base_url

    def upgrade(path: str) -> bytes:
        head = (
            f"GET {place}{path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n"
            f"Authorization: {client.headers['authorization']}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )

        with socket.create_connection((url.host, url.port or 80), timeout=30) as sock:
            sock.sendall(head.encode())
            return sock.recv(1000)

    assert upgrade(path).startswith(b"HTTP/1.1 422"), upgrade(path)
    # Control: the same without it.
    assert upgrade(path.partition("#")[0]).startswith(b"HTTP/1.1 101")
