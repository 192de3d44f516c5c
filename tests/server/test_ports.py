"""Web servers inside sandboxes, reached from outside: by path, by signed address, by host name; HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import websockets
from tests.waiting import until
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_in_thread

INSIDE = """
import hashlib, http.server, threading

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(5):
                data = b"piece %d\\n" % number
                self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))
                self.wfile.flush()
                # The next piece comes only when the client has asked for it elsewhere.
                if number == 0:
                    go.wait(20)
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        if self.path == "/go":
            go.set()
        if self.path == "/broken":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"short")
            self.close_connection = True
            return
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        seen = "\\n".join([self.path, *(f"{k.lower()}: {v}" for k, v in self.headers.items())]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(seen)))
        self.send_header("Set-Cookie", "stolen=1; Path=/")
        self.end_headers()
        self.wfile.write(seen)

    def do_POST(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers["Content-Length"]))
        answer = hashlib.sha256(data).hexdigest().encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass

go = threading.Event()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""

# A WebSocket server without any package: it sends back what it gets, and closes with 4001 at "bye".
ECHO = """
import base64, hashlib, socket, struct, threading

def serve(conn):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += conn.recv(4096)
    head = data.split(b"\\r\\n\\r\\n")[0].decode()
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head.split("\\r\\n")[1:]}
    key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
             f"Sec-WebSocket-Accept: {accept}"]
    if "sec-websocket-protocol" in headers:
        lines.append("Sec-WebSocket-Protocol: " + headers["sec-websocket-protocol"].split(",")[-1].strip())
    conn.sendall(("\\r\\n".join(lines) + "\\r\\n\\r\\n").encode())
    stream = conn.makefile("rb")
    while head := stream.read(2):
        opcode, size = head[0] & 15, head[1] & 127
        if size == 126:
            size = struct.unpack(">H", stream.read(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", stream.read(8))[0]
        mask = stream.read(4)
        payload = bytes(b ^ mask[i % 4] for i, b in enumerate(stream.read(size)))
        if opcode == 8:
            break
        if payload == b"bye":
            conn.sendall(b"\\x88\\x02" + struct.pack(">H", 4001))
            break
        head = bytes([0x80 | opcode])
        head += bytes([size]) if size < 126 else b"\\x7e" + struct.pack(">H", size)
        conn.sendall(head + payload)
    conn.close()

listener = socket.create_server(("127.0.0.1", 8001))
def accept():
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
"""


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox_id(client: httpx2.Client) -> str:
    """A sandbox in which both servers run."""
    made = client.post("/v1/sandboxes", json={"timeout_seconds": 600})
    assert made.status_code == 201, made.text
    name = made.json()["id"]
    ran = client.post(f"/v1/sandboxes/{name}/executions", json={"code": INSIDE + ECHO})
    assert ran.json()["error"] is None, ran.text
    return str(name)


def _inside(sandbox_id: str, path: str, port: int = 8000) -> str:
    return f"/v1/sandboxes/{sandbox_id}/ports/{port}{path}"


def test_a_page_is_reached(client: httpx2.Client, sandbox_id: str, server: Any) -> None:
    """Path and query arrive as they were sent; the token that opened the way does not arrive."""
    answer = client.get(
        _inside(sandbox_id, "/a%2Fb%20c/?q=1&q=%C3%A4"), headers={"Cookie": "own=1", "X-Mine": "2"}
    )
    path, *headers = answer.text.split("\n")
    assert path == "/a%2Fb%20c/?q=1&q=%C3%A4"
    assert "host: localhost:8000" in headers
    assert "x-mine: 2" in headers
    assert f"x-forwarded-prefix: /v1/sandboxes/{sandbox_id}/ports/8000" in headers
    assert server.token not in answer.text
    assert "own=1" not in answer.text


def test_w06_what_a_guest_serves_is_in_no_origin_of_ours(client: httpx2.Client, sandbox_id: str) -> None:
    answer = client.get(_inside(sandbox_id, "/page.html"))
    policies = answer.headers.get_list("content-security-policy")
    assert any(policy.startswith("sandbox") for policy in policies)
    assert not any("allow-same-origin" in policy for policy in policies)
    assert "set-cookie" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_bodies_go_in(client: httpx2.Client, sandbox_id: str, is_chunked: bool) -> None:
    import hashlib

    body = b"x" * 3_000_000
    content = iter([body[:1_000_000], body[1_000_000:]]) if is_chunked else body
    answer = client.post(_inside(sandbox_id, "/"), content=content)
    assert (answer.status_code, answer.text) == (201, hashlib.sha256(body).hexdigest())


def test_an_answer_streams(client: httpx2.Client, sandbox_id: str) -> None:
    """The first piece is here while the second has not been written."""
    with client.stream("GET", _inside(sandbox_id, "/stream")) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "piece 0"
        assert client.get(_inside(sandbox_id, "/go")).status_code == 200
        assert list(lines) == [f"piece {number}" for number in range(1, 5)]


def test_an_answer_that_breaks_off_breaks_off(client: httpx2.Client, sandbox_id: str) -> None:
    """By a reset, behind what was sent: no client takes it for the whole."""
    with pytest.raises(httpx2.ReadError, match="reset"):
        client.get(_inside(sandbox_id, "/broken"))


def test_status_and_headers_come_back(client: httpx2.Client, sandbox_id: str) -> None:
    """A redirect leads to where the server inside means, seen from outside."""
    answer = client.get(_inside(sandbox_id, "/redirect"), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, _inside(sandbox_id, "/elsewhere"))


def test_nothing_listens(client: httpx2.Client, sandbox_id: str) -> None:
    answer = client.get(_inside(sandbox_id, "/", port=9))
    assert (answer.status_code, answer.json()["code"]) == (502, "port_closed")


@pytest.mark.parametrize("port", [0, 65536, 99999, "-1", "True", "1" * 5000, "٣٠٠٠"])
def test_there_is_no_such_port(client: httpx2.Client, sandbox_id: str, port: Any) -> None:
    assert client.get(_inside(sandbox_id, "/", port=port)).status_code == 422


def test_a_server_that_does_not_speak_http(client: httpx2.Client, sandbox_id: str) -> None:
    code = (
        "import socket, threading\n"
        "s = socket.create_server(('127.0.0.1', 8002))\n"
        "def f():\n"
        "    while True:\n"
        "        c, _ = s.accept(); c.recv(4096); c.sendall(b'\\x00\\xff junk \\r\\n\\r\\n'); c.close()\n"
        "threading.Thread(target=f, daemon=True).start()\n"
    )
    client.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code})
    answer = client.get(_inside(sandbox_id, "/", port=8002))
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_gateway")


def test_without_a_token_nobody_gets_in(server: Any, sandbox_id: str) -> None:
    assert httpx2.get(server.url + _inside(sandbox_id, "/")).status_code == 401


def test_a_signed_address_needs_no_token(client: httpx2.Client, server: Any, sandbox_id: str) -> None:
    """It opens one port of one sandbox for a time, and a page behind it may call its own server."""
    signed = client.post(_inside(sandbox_id, "/sign"), json={"expires_in_seconds": 60}).json()["url"]

    with httpx2.Client(base_url=server.url, timeout=30) as browser:
        answer = browser.get(signed + "x?y=1", headers={"Authorization": "Bearer inner"})
        assert answer.text.startswith("/x?y=1\n")
        assert "authorization: Bearer inner" in answer.text
        own = browser.post(signed, content=b"abc", headers={"Origin": "null"})
        assert (own.status_code, own.headers["access-control-allow-origin"]) == (201, "null")
        assert browser.get(signed.replace("/8000/", "/8001/")).status_code == 403
        assert browser.get(signed.replace("/p/1", "/p/2")).status_code == 403
        assert browser.get("/p/nonsense/" + sandbox_id + "/8000/").status_code == 403
        expired = client.post(_inside(sandbox_id, "/sign"), json={"expires_in_seconds": 0.001}).json()["url"]
        assert browser.get(expired).status_code == 403


def test_w09_a_port_of_somebody_else(client: httpx2.Client, server: Any, sandbox_id: str) -> None:
    token = client.post("/v1/keys", json={"name": "stranger"}).json()["token"]
    stranger = {"Authorization": f"Bearer {token}"}
    answer = httpx2.get(server.url + _inside(sandbox_id, "/"), headers=stranger)
    unknown = httpx2.get(server.url + _inside("0" * len(sandbox_id), "/"), headers=stranger)
    assert (answer.status_code, unknown.status_code) == (404, 404)
    assert answer.json()["code"] == unknown.json()["code"] == "sandbox_not_found"
    signing = httpx2.post(server.url + _inside(sandbox_id, "/sign"), headers=stranger, json={})
    assert signing.status_code == 404


def test_websockets_go_through(server: Any, sandbox_id: str) -> None:
    """Text, bytes, large messages, subprotocols and close codes, in both directions."""
    url = server.url.replace("http", "ws") + _inside(sandbox_id, "/chat", port=8001)

    async def talk() -> None:
        async with connect(
            url, additional_headers=server.headers, subprotocols=["first", "second"]
        ) as socket:
            assert socket.subprotocol == "second"

            for message in ("hello", b"\x00\xff", "ä" * 20_000, ""):
                await socket.send(message)
                assert await socket.recv() == message

            await socket.send("bye")

            with pytest.raises(websockets.ConnectionClosed) as closed:
                await socket.recv()

            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4001

    asyncio.run(talk())


# A WebSocket server that counts what it gets, sends it back at one of its ports, and writes down how each ended.
COUNTING = """
import base64, hashlib, socket, threading

def serve(conn):
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += conn.recv(4096)
    head = data.decode().lower()
    original = data.decode().split("\\r\\n")
    key = next(line.split(": ")[1] for line in original if line.lower().startswith("sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    conn.sendall(("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
        f"Sec-WebSocket-Accept: {accept}\\r\\n\\r\\n").encode())
    stream, got, ended = conn.makefile("rb"), 0, "cut off"
    while head := stream.read(2):
        stream.read(4)
        content = stream.read(head[1] & 127)
        if head[0] & 15 == 8:
            ended = "close frame"
            break
        got += 1
        if conn.getsockname()[1] == 8012:
            conn.sendall(b"\\x82" + bytes([len(content)]) + content)
    with open("seen", "a") as file:
        file.write(f"{got} {ended}\\n")
    conn.close()

def accept(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=accept, args=(socket.create_server(("127.0.0.1", PORT)),), daemon=True).start()
"""


def _raw_websocket(server: Any, path: str) -> socket.socket:
    """A WebSocket of a client that does not wait for anything after the handshake."""
    line = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30)
    line.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    head = b""

    while b"\r\n\r\n" not in head and (piece := line.recv(1)):
        head += piece

    assert b" 101 " in head
    return line


def test_a_websocket_that_is_closed_at_once_loses_no_message(
    server: Any, client: httpx2.Client, sandbox_id: str
) -> None:
    """All that a client sent before its close frame arrives, whether it waits or has left, and the close after it."""
    for port in (8011, 8012):
        code = f"PORT = {port}\n" + COUNTING
        client.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code}).raise_for_status()

    message, close = b"\x82\x81\0\0\0\0x", b"\x88\x82\0\0\0\0\x03\xe8"

    def seen() -> list[str]:
        answer = client.get(f"/v1/sandboxes/{sandbox_id}/files/content", params={"path": "seen"})
        return answer.text.splitlines() if answer.status_code == 200 else []

    # Leaves without a look at the answer.
    for _ in range(3):
        with _raw_websocket(server, _inside(sandbox_id, "/", port=8011)) as line:
            line.sendall(message * 2000 + close)

    # Waits for the answer to its close, while what it sent is sent back.
    url = server.url.replace("http", "ws") + _inside(sandbox_id, "/", port=8012)

    for _ in range(5):
        with connect_in_thread(url, additional_headers=server.headers) as chat:
            for _ in range(200):
                chat.send(b"x")

    until(lambda: len(seen()) == 8, "the server inside has seen all ends")
    assert sorted(seen()) == ["200 close frame"] * 5 + ["2000 close frame"] * 3

    # Broken off: the server inside is not shown an orderly end.
    with _raw_websocket(server, _inside(sandbox_id, "/", port=8011)) as line:
        line.sendall(message)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    until(lambda: len(seen()) == 9, "the server inside has seen the end")
    assert seen()[-1].endswith("cut off")


def test_a_websocket_ends_with_the_right_of_its_key(server: Any, client: httpx2.Client) -> None:
    """Within two seconds and a little after its key was rotated; that of another key goes on."""
    made = client.post("/v1/keys", json={"name": "rotated"}).json()
    token = {"X-API-Key": made["token"]}
    name = client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {made['token']}"}).json()[
        "id"
    ]
    client.post(f"/v1/sandboxes/{name}/executions", json={"code": ECHO}).raise_for_status()
    url = server.url.replace("http", "ws") + _inside(name, "/chat", port=8001)

    async def talk() -> None:
        async with (
            connect(url, additional_headers=token) as socket,
            connect(url, additional_headers=server.headers) as owners,
        ):
            await socket.send("hello")
            assert await socket.recv() == "hello"
            client.post(f"/v1/keys/{made['key']['id']}/rotate", json={}).raise_for_status()

            with pytest.raises(websockets.ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 15)

            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "unauthenticated")
            await owners.send("hello")
            assert await owners.recv() == "hello"

    asyncio.run(talk())
    client.delete(f"/v1/sandboxes/{name}")


def test_a_websocket_is_refused_with_a_reason(server: Any, sandbox_id: str) -> None:
    async def status(path: str, headers: dict[str, str]) -> int:
        try:
            async with connect(server.url.replace("http", "ws") + path, additional_headers=headers):
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    async def ask() -> list[int]:
        return [
            await status(_inside(sandbox_id, "/", port=8001), {}),
            await status(_inside(sandbox_id, "/", port=9), server.headers),
            await status(_inside(sandbox_id, "/", port=8000), server.headers),
            await status(
                _inside(sandbox_id, "/", port=8001), {**server.headers, "Origin": "http://evil.test"}
            ),
            await status(f"/v1/sandboxes/{sandbox_id}/tunnels/True", server.headers),
        ]

    assert asyncio.run(ask()) == [401, 502, 502, 403, 422]


def test_a_host_name_of_its_own(start_server: Callable[..., Any]) -> None:
    """With a domain, `{port}-{id}.DOMAIN` is an origin of its own: cookies come back, tokens are still asked for."""
    server = start_server(domain="sandbox.test", pool_size=0)

    with httpx2.Client(base_url=server.url, timeout=30) as client:
        name = client.post("/v1/sandboxes", json={}, headers=server.headers).json()["id"]
        code = {"code": INSIDE}
        client.post(f"/v1/sandboxes/{name}/executions", json=code, headers=server.headers)
        host = f"8000-{name}.sandbox.test"
        assert client.get("/x", headers={"Host": host}).status_code == 403
        assert client.get("/x", headers={"Host": host, "Authorization": "Bearer no"}).status_code == 401
        answer = client.get("/x?y", headers={"Host": host, **server.headers})
        assert answer.text.startswith("/x?y\n")
        assert "set-cookie" in answer.headers
        assert "content-security-policy" not in answer.headers
        assert server.token not in answer.text
        signed = client.post(_inside(name, "/sign"), json={}, headers=server.headers).json()
        assert signed["host"] == host
        assert client.get("/x", headers={"Host": f"8000-{name}.evil.test"}).status_code == 421


def test_ports_may_be_public(start_server: Callable[..., Any]) -> None:
    server = start_server(domain="sandbox.test", public_ports="true", pool_size=0)

    with httpx2.Client(base_url=server.url, timeout=30) as client:
        name = client.post("/v1/sandboxes", json={}, headers=server.headers).json()["id"]
        client.post(f"/v1/sandboxes/{name}/executions", json={"code": INSIDE}, headers=server.headers)
        inner = {"Host": f"8000-{name}.sandbox.test", "Authorization": "Bearer inner", "Cookie": "a=1"}
        answer = client.get("/", headers=inner)
        assert "authorization: Bearer inner" in answer.text
        assert "cookie: a=1" in answer.text
        gone = client.get("/", headers={"Host": f"8000-{'0' * len(name)}.sandbox.test"})
        assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found")
        assert (
            client.get(
                "/", headers={"Host": f"8000-{'0' * len(name)}.sandbox.test", **server.headers}
            ).status_code
            == 404
        )
