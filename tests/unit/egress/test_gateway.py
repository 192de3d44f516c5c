"""Connections through the gateway to real servers: what passes, what does not, and how much of it.

Rows N03 to N08 and N11 to N13 without a sandbox, so that there can be many of them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
from tests.unit.egress.conftest import LOOPBACK, Certificates, Guest, listed, run, served, world

from fumehood import Network
from fumehood.egress import dialer
from fumehood.egress.proxy_connection import serve

OK = b"HTTP/1.1 200 OK"


def get(server: Any, name: str = "api.example.com", path: str = "/", more: bytes = b"") -> bytes:
    host = f"{name}:{server.port}".encode()
    return b"GET http://%s%s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (host, path.encode(), host, more)


def test_a_request_is_passed_on_and_written_anew():
    """What concerns this hop alone is left out; Host is the target; the connection is for one request."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            more = b"Proxy-Authorization: x\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Stays: 2\r\nTE: trailers\r\n"
            answer = await here.ask(get(server, path="/a?b=c", more=more))
            assert answer.startswith(OK)
            assert answer.endswith(b"ok")
            lines = server.seen[0].lower().split(b"\r\n")
            assert lines[0] == b"get /a?b=c http/1.1"
            assert b"host: api.example.com:%d" % server.port in lines
            assert b"x-stays: 2" in lines
            assert b"connection: close" in lines
            assert not any(line.startswith((b"proxy-", b"x-hop", b"te:")) for line in lines)
            assert here.last.verdict == "allowed"
            assert here.last.address == LOOPBACK
            assert here.last.bytes_sent == len(server.seen[0])
            assert here.last.bytes_received == len(answer)

    run(work)


@pytest.mark.parametrize(
    ("head", "body", "seen"),
    [
        (b"Content-Length: 5\r\n", b"hello", b"hello"),
        (
            b"Transfer-Encoding: chunked\r\n",
            b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
            b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
        ),
        (
            b"Transfer-Encoding: Chunked\r\n",
            b"00A\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
            b"a\r\n0123456789\r\n0\r\n\r\n",
        ),
    ],
)
def test_a_body_is_carried_to_its_end(head, body, seen):
    """By its length or by chunks, which are written anew, without what comes behind them."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            assert (await here.say(get(server, more=head) + body)).startswith(OK)
            assert server.seen[0].endswith(b"\r\n\r\n" + seen)

    run(work)


def test_an_old_client_is_passed_on_as_one():
    """The server then answers without chunks."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            old = b"GET http://api.example.com:%d/ HTTP/1.0\r\n\r\n" % server.port
            assert (await here.ask(old)).startswith(OK)
            assert server.seen[0].startswith(b"GET / HTTP/1.0\r\nHost: api.example.com:")

    run(work)


def test_a_client_that_waits_for_a_word_gets_it():
    """100 Continue is the proxy's to say; the server is not asked to."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            guest = here.connect()
            await guest.send(get(server, more=b"Content-Length: 2\r\nExpect: 100-continue\r\n"))
            assert await guest.receive_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await guest.send(b"hi")
            assert (await guest.rest()).startswith(OK)
            assert b"expect" not in server.seen[0].lower()

    run(work)


def test_a_tunnel_carries_both_ways():
    """What is not TLS nor HTTP passes on a port that is listed, whoever speaks first; each way has its end."""

    async def work() -> None:
        async with served(b"", greeting=b"220 welcome\r\n") as server:
            async with world(listed(server, "mail.example.com")) as here:
                guest = here.connect()
                await guest.send(b"CONNECT mail.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
                assert (await guest.receive_until(b"welcome\r\n")).startswith(b"HTTP/1.1 200 ")
                await guest.send(b"EHLO you\r\n")
                guest.sock.shutdown(socket.SHUT_WR)
                assert await guest.rest() == b""
                assert server.seen == [b"EHLO you\r\n"]

    run(work)


def socks(host: bytes, port: int, kind: int = 3, command: int = 1) -> bytes:
    sized = bytes((len(host),)) + host if kind == 3 else host
    return bytes((5, 1, 0, 5, command, 0, kind)) + sized + port.to_bytes(2, "big")


def test_socks_carries_tcp():
    """By name and by address."""

    async def work() -> None:
        async with served(b"", greeting=b"220 welcome\r\n") as server:
            async with world(listed(server, "mail.example.com")) as here:
                for asked in (
                    socks(b"mail.example.com", server.port),
                    socks(socket.inet_aton(LOOPBACK), server.port, 1),
                ):
                    guest = here.connect()
                    await guest.send(asked)
                    said = await guest.receive_until(b"welcome\r\n")
                    assert said[:4] == b"\x05\x00\x05\x00"
                    assert here.last.kind == "socks"

    run(work)


@pytest.mark.parametrize(
    "asked",
    [
        socks(b"evil.example.com", 443),
        socks(b"mail.example.com\0.evil.com", 443),
        socks(b"mail.example.com\r\n", 443),
        socks(b"[::1]", 443),
        socks(b"127.1", 443),
        socks(b"", 443),
        socks(b"mail.example.com", 0),
        socks(b"mail.example.com", 25),
        socks(socket.inet_aton("10.0.0.1"), 80, 1),
        socks(socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1"), 443, 4),
        socks(socket.inet_pton(socket.AF_INET6, "::1"), 443, 4),
        socks(b"mail.example.com", 443, command=2),
        socks(b"mail.example.com", 443, command=3),
        bytes((5, 1, 2)),
        bytes((5, 0)),
        bytes((4, 1, 1, 187, 1, 2, 3, 4, 0)),
        socks(b"x", 443, kind=9),
    ],
)
def test_n04_n05_socks_beyond_that_is_refused(asked):
    """Other commands, other versions, authentication, names that are none, ports that are not listed."""

    async def work() -> None:
        async with world(
            Network(allow=["mail.example.com:443"], hosts={"mail.example.com": LOOPBACK})
        ) as here:
            said = await here.ask(asked)
            assert b"\x05\x00\x05\x00" not in said
            assert b" 200 " not in said
            assert here.last.verdict == "denied"

    run(work)


@pytest.mark.parametrize(
    "target",
    [
        *(
            "127.0.0.1",
            "0x7f.1",
            "2130706433",
            "127.1",
            "0177.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::127.0.0.1]",
        ),
        *("0.0.0.0", "[::]", "localhost", "api.example.com.", "api.example.com%00", "user@api.example.com"),
        *("api.example.com\\.evil.com", "evil.com#api.example.com", "api.example.com?", "API.EXAMPLE.COM"),
    ],
)
@pytest.mark.parametrize("form", ["connect", "absolute"])
def test_n04_n05_only_plain_names_pass(target, form):
    """Port 9 of an address is nobody's; what passes is the one name, however it is written, and then nobody answers."""

    async def work() -> None:
        network = Network(allow=["api.example.com:9", f"{LOOPBACK}:7"], hosts={"api.example.com": LOOPBACK})

        async with world(network) as here:
            connect = b"CONNECT %s:9 HTTP/1.1\r\n\r\n" % target.encode()
            absolute = b"GET http://%s:9/ HTTP/1.1\r\n\r\n" % target.encode()
            said = await here.ask(connect if form == "connect" else absolute)
            assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
            assert here.last.verdict == "denied"
            assert here.last.address is None

    run(work)


def ambiguous(server: Any) -> dict[str, bytes]:
    """Requests that two readers could understand differently."""
    host = b"api.example.com:%d" % server.port
    line = b"POST http://%s/ HTTP/1.1\r\n" % host
    named = line + b"Host: %s\r\n" % host
    return {
        "both lengths": named + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "two lengths": named + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "the same length twice": named + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        "a list of lengths": named + b"Content-Length: 5, 5\r\n\r\nhello",
        "a length with a sign": named + b"Content-Length: +5\r\n\r\nhello",
        "a length in hex": named + b"Content-Length: 0x5\r\n\r\nhello",
        "an empty length": named + b"Content-Length: \r\n\r\n",
        "an unknown encoding": named + b"Transfer-Encoding: identity\r\n\r\n",
        "two encodings": named + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "a smuggled encoding": named + b"Transfer-Encoding: xchunked\r\n\r\n",
        "a vertical tab": named + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "a space before the colon": named + b"Content-Length : 5\r\n\r\nhello",
        "a folded line": named + b"X: a\r\n b: c\r\n\r\n",
        "a bare line feed": named + b"X: a\nHost: evil.com\r\n\r\n",
        "a bare carriage return": named + b"X: a\rHost: evil.com\r\n\r\n",
        "a NUL": named + b"X: a\0b\r\n\r\n",
        "line feeds alone": b"GET http://%s/ HTTP/1.1\nHost: %s\n\n\r\n\r\n" % (host, host),
        "another Host": line + b"Host: evil.com\r\n\r\n",
        "another port in Host": line + b"Host: api.example.com:81\r\n\r\n",
        "two Hosts": named + b"Host: %s\r\n\r\n" % host,
        "an empty Host": line + b"Host: \r\n\r\n",
        "a header without a name": named + b": x\r\n\r\n",
        "a header without a colon": named + b"nothing\r\n\r\n",
        "a space in the address": b"GET http://%s/a b HTTP/1.1\r\n\r\n" % host,
        "a tab in the line": b"GET\thttp://%s/ HTTP/1.1\r\n\r\n" % host,
        "another version": b"GET http://%s/ HTTP/2.0\r\n\r\n" % host,
        "no version": b"GET http://%s/\r\n\r\n" % host,
        "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "a fragment": b"GET http://%s/#@evil.com HTTP/1.1\r\n\r\n" % host,
        "a user": b"GET http://a:b@%s/ HTTP/1.1\r\n\r\n" % host,
        "a backslash": b"GET http://%s\\@evil.com/ HTTP/1.1\r\n\r\n" % host,
        "an echo": b"TRACE http://%s/ HTTP/1.1\r\n\r\n" % host,
        "CONNECT in small letters": b"connect http://%s/ HTTP/1.1\r\n\r\n" % host,
        "an echo in small letters": b"track http://%s/ HTTP/1.1\r\n\r\n" % host,
        "https in this form": b"GET https://%s/ HTTP/1.1\r\n\r\n" % host,
        "a file": b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        "ftp": b"GET ftp://%s/ HTTP/1.1\r\n\r\n" % host,
        "a path alone": b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host,
        "a star": b"OPTIONS * HTTP/1.1\r\nHost: %s\r\n\r\n" % host,
        "CONNECT with a body": b"CONNECT %s HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello" % host,
        "CONNECT to another Host": b"CONNECT %s HTTP/1.1\r\nHost: evil.com:443\r\n\r\n" % host,
        "a chunk size in words": named + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "a chunk extension": named + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
        "a negative chunk": named + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        "a chunk that is too long": named + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
        "an unknown expectation": named + b"Expect: miracles\r\n\r\n",
        "too many headers": named + b"A: b\r\n" * 300 + b"\r\n",
        "too large a head": named + b"A: " + b"b" * 70_000 + b"\r\n\r\n",
        "too long a line": b"GET http://%s/%s HTTP/1.1\r\n\r\n" % (host, b"a" * 70_000),
        "noise": bytes(range(6, 256)) * 10 + b"\r\n\r\n",
    }


@pytest.mark.parametrize("what", list(ambiguous(type("S", (), {"port": 1}))))
def test_n11_what_can_be_understood_in_two_ways_is_refused(what):
    """And nothing of it that could begin another request reaches a server."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            said = await here.ask(ambiguous(server)[what])
            assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), said
            assert here.last.verdict == "denied"
            assert not any(b"evil" in data or data.count(b"HTTP/1.1") > 1 for data in server.seen)

    run(work)


@pytest.mark.parametrize("body", [b"", b"Content-Length: 5\r\n"])
def test_n11_a_second_request_goes_nowhere(body):
    """Sent along with the first one, or later on the same connection: it is closed, whatever the second is for."""

    async def work() -> None:
        async with served(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as server:
            async with world(listed(server, "api.example.com", "other.example.com")) as here:
                first = get(server, more=body) + (b"hello" if body else b"")
                await here.say(first + get(server, "other.example.com", "/second"))

                guest = here.connect()
                await guest.send(first)
                assert (await guest.receive_until(b"ok")).startswith(OK)
                await guest.send(get(server, "other.example.com", "/second"))
                assert await guest.rest() == b""
                assert not any(b"second" in data for data in server.seen)

    run(work)


def test_n11_an_upgrade_is_not_passed_on():
    """The server is never asked to speak another protocol; what a guest sends for one goes nowhere."""

    async def work() -> None:
        async with served(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n") as server:
            async with world(listed(server, "api.example.com")) as here:
                guest = here.connect()
                await guest.send(
                    get(server, more=b"Connection: Upgrade\r\nUpgrade: x\r\nHTTP2-Settings: x\r\n")
                )
                await guest.receive_until(b"\r\n\r\n")
                await guest.send(b"anything")
                await guest.rest()
                assert b"upgrade" not in server.seen[0].lower()
                assert b"anything" not in server.seen[0]

    run(work)


# Requests for another Host, in forms that some server takes for one.
ODD_REQUESTS = {
    "an empty line first": b"\r\nGET /x HTTP/1.1\r\n",
    "a line feed first": b"\nGET /x HTTP/1.1\r\n",
    "many empty lines first": b"\r\n" * 20_000 + b"GET /x HTTP/1.1\r\n",
    "a space first": b" GET /x HTTP/1.1\r\n",
    "a vertical tab first": b"\x0bGET /x HTTP/1.1\r\n",
    "a NUL first": b"\0GET /x HTTP/1.1\r\n",
    "a method of WebDAV": b"PROPFIND /x HTTP/1.1\r\n",
    "a method of nobody": b"FROBNICATE /x HTTP/1.1\r\n",
    "small letters": b"get /x HTTP/1.1\r\n",
    "a version in small letters": b"FROB /x http/1.1\r\n",
    "a tab in the line": b"GET\t/x HTTP/1.1\r\n",
    "two spaces in the line": b"get  /x  HTTP/1.1\r\n",
    "line feeds alone": b"PROPFIND /x HTTP/1.1\n",
    "no version": b"\r\nGET /x\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "HTTP/2 behind an empty line": b"\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n",
    "an upgrade": b"\r\nGET /x HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n",
    "a PROXY header": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET /x HTTP/1.1\r\n",
    "a binary PROXY header": b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0GET /x HTTP/1.1\r\n",
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize("what", list(ODD_REQUESTS))
def test_n08_a_request_in_an_odd_form_reaches_no_server_in_a_tunnel(what, at_once):
    """On a port of its own, where other protocols pass as they are: no Host but the one that was allowed."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            guest = here.connect()
            await guest.send(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
            await guest.receive_until(b"\r\n\r\n")
            request = ODD_REQUESTS[what] + b"Host: other.example.com:%d\r\n\r\n" % server.port
            step = len(request) if at_once or len(request) > 1000 else 1

            for at in range(0, len(request), step):
                await guest.send(request[at : at + step])

            await guest.rest()
            assert not any(b"HTTP/1" in data or b"other" in data for data in server.seen), server.seen
            assert here.last.verdict == "denied"

    run(work)


@pytest.mark.parametrize("method", [b"PROPFIND", b"REPORT", b"GET"])
def test_n08_other_methods_are_carried_to_the_host_that_was_allowed(method):
    """Control: WebDAV speaks HTTP like any other."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            guest = here.connect()
            await guest.send(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
            await guest.receive_until(b"\r\n\r\n")
            await guest.send(b"%s /x HTTP/1.1\r\nHost: api.example.com:%d\r\n\r\n" % (method, server.port))
            await guest.receive()
            assert server.seen[0].startswith(method + b" /x HTTP/1.1\r\nHost: api.example.com")

    run(work)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\0\0\1\4",
        b"*1\r\n$4\r\nPING\r\n",
        b"COPY a b\r\n",
        b"EHLO client.example\r\nMAIL FROM:<a@b>\r\nGET / HTTP/1.1\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"x" * 300_000,
    ],
    ids=["ssh", "redis", "redis inline", "smtp", "postgres", "long"],
)
def test_n08_other_protocols_pass_as_they_are(data):
    """Control: nothing of them is kept back, also where the client waits for an answer before its line ends."""

    async def work() -> None:
        async with served(b"") as server, world(listed(server, "api.example.com")) as here:
            guest = here.connect()
            await guest.send(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
            await guest.receive_until(b"\r\n\r\n")
            await guest.send(data)

            async with asyncio.timeout(30):
                while b"".join(server.seen) != data:
                    await asyncio.sleep(0.005)

    run(work)


def test_n11_plain_http_in_a_tunnel_is_held_to_its_host():
    """Of servers that share an address, only the one that was allowed is asked; once for each connection."""

    async def work() -> None:
        async with served() as server, world(listed(server, "api.example.com")) as here:
            connect = b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port

            for name, passes in ((b"api.example.com", True), (b"other.example.com", False)):
                guest = here.connect()
                await guest.send(connect)
                await guest.receive_until(b"\r\n\r\n")
                # Byte by byte, as somebody would who hopes that the first one decides.
                request = b"GET /x HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (name, server.port)

                for at in range(len(request)):
                    await guest.send(request[at : at + 1])

                said = await guest.rest()
                assert said.startswith(OK) is passes
                assert (here.last.verdict == "allowed") is passes

            assert not any(b"other" in data for data in server.seen)

    run(work)


async def tls(guest: Guest, name: str | None, context: ssl.SSLContext) -> bytes:
    """Shakes hands through a tunnel, asks, and returns what was said."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    said = b""

    async def step(act: Any) -> bool:
        while True:
            try:
                act()
            except ssl.SSLWantReadError:
                await guest.send(outgoing.read())
                data = await guest.receive()

                if not data:
                    return False

                incoming.write(data)
            else:
                await guest.send(outgoing.read())
                return True

    if not await step(client.do_handshake):
        return b""

    await step(lambda: client.write(b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"))

    def read() -> None:
        nonlocal said
        said = client.read(1 << 16)

    await step(read)
    return said


@pytest.mark.parametrize(
    ("name", "passes"),
    [("api.example.com", True), ("API.example.com", True), ("evil.example.com", False), (None, False)],
)
def test_n08_the_name_in_tls_is_the_one_that_was_allowed(certificates: Certificates, name, passes):
    """Another one, or none, does not get as far as the server's handshake."""

    async def work() -> None:
        async with served(context=certificates.server_context("api.example.com")) as server:
            async with world(listed(server, "api.example.com")) as here:
                context = ssl.create_default_context(cafile=str(certificates.authority_file))

                if not passes:
                    context.check_hostname = False

                guest = here.connect()
                await guest.send(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
                await guest.receive_until(b"\r\n\r\n")
                said = await tls(guest, name, context)
                assert said.startswith(OK) is passes
                assert bool(server.names) is passes
                assert (here.last.verdict == "allowed") is passes

    run(work)


def test_n08_through_443_only_tls_is_spoken(monkeypatch):
    """No request in the clear, no other protocol."""

    async def work() -> None:
        async with served() as server:
            real = dialer._connect
            monkeypatch.setattr(dialer, "_connect", lambda address, _port: real(address, server.port))
            network = Network(allow=["api.example.com", LOOPBACK], hosts={"api.example.com": LOOPBACK})

            async with world(network) as here:
                for said in (
                    b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
                    b"SSH-2.0-x\r\n",
                    b"\x80\x2e\x01\x03",
                ):
                    guest = here.connect()
                    await guest.send(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n" + said)
                    assert (await guest.rest()).count(b"HTTP/1.1") == 1
                    assert here.last.verdict == "denied"

                assert not any(server.seen)

    run(work)


class Names:
    """The system's resolver as somebody else could have it: it answers what it likes, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        monkeypatch.setattr(dialer.socket, "getaddrinfo", self._answer)

    def _answer(self, name: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(name)
        found = self._answers[min(len(self.asked), len(self._answers)) - 1]
        return [(0, 0, 0, "", (address, 0)) for address in found]


@pytest.mark.parametrize(
    "answer",
    [
        *(
            ["127.0.0.1"],
            ["10.0.0.1"],
            ["169.254.169.254"],
            ["100.64.0.1"],
            ["0.0.0.0"],
            ["::1"],
            ["fc00::1"],
        ),
        *(["fe80::1%2"], ["64:ff9b::7f00:1"], ["::ffff:127.0.0.1"], ["2002:7f00:1::1"]),
        *(["93.184.215.14", "127.0.0.1"], ["127.0.0.1", "93.184.215.14"], ["93.184.215.14", "::1"]),
    ],
)
def test_n06_one_wrong_address_among_all_is_enough(monkeypatch, answer):
    """None of them is dialled, neither the wrong one nor a right one beside it."""

    async def work() -> None:
        Names(monkeypatch, answer)

        async def dialled(*_: Any) -> Any:
            raise AssertionError("dialled")

        monkeypatch.setattr(dialer, "_connect", dialled)

        for network in (Network(allow=["api.example.com"]), Network(internet=True)):
            async with world(network) as here:
                said = await here.ask(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
                assert said.startswith(b"HTTP/1.1 403")
                assert here.last.verdict == "denied"

    run(work)


def test_n07_what_was_checked_is_what_is_dialled(monkeypatch):
    """A resolver that answers something else each time is asked once for each connection."""

    async def work() -> None:
        names = Names(monkeypatch, ["93.184.215.14"], ["127.0.0.1"], ["93.184.215.14"])
        dialled: list[str] = []

        async def connect(address: Any, _port: int) -> Any:
            dialled.append(str(address))
            raise ConnectionRefusedError(111, "refused")

        monkeypatch.setattr(dialer, "_connect", connect)

        async with world(Network(allow=["api.example.com"])) as here:
            for status in (b"502", b"403", b"502"):
                said = await here.ask(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
                assert said.startswith(b"HTTP/1.1 " + status)

        assert dialled == ["93.184.215.14", "93.184.215.14"]
        # The dot keeps the search list out of it.
        assert names.asked == ["api.example.com."] * 3

    run(work)


def test_n10_a_name_that_is_not_allowed_is_not_asked_for(monkeypatch):
    """A thousand labels below somebody's zone: the resolver hears of none."""

    async def work() -> None:
        names = Names(monkeypatch, ["93.184.215.14"])

        async with world(Network(allow=["api.example.com"], deny=["*.zone.test"])) as here:
            for number in range(1000):
                await here.ask(b"CONNECT x%d.zone.test:443 HTTP/1.1\r\n\r\n" % number)

            assert names.asked == []
            assert len(here.gateway.records) == 1000

    run(work)


def test_n12_a_changed_policy_ends_what_it_forbids():
    """A tunnel that was open is closed; one that is still allowed goes on."""

    async def work() -> None:
        from fumehood.egress.gateway import Route

        async with served(b"", greeting=b"hello\r\n") as server:
            async with world(listed(server, "a.example.com", "b.example.com")) as here:
                guests = {}

                for name in (b"a.example.com", b"b.example.com"):
                    guests[name] = here.connect()
                    await guests[name].send(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (name, server.port))
                    await guests[name].receive_until(b"hello\r\n")

                here.gateway.use(Route(network=listed(server, "b.example.com")))
                assert await guests[b"a.example.com"].rest() == b""
                assert here.last.verdict == "denied"
                await guests[b"b.example.com"].send(b"still here")
                guests[b"b.example.com"].sock.shutdown(socket.SHUT_WR)
                assert await guests[b"b.example.com"].rest() == b""
                assert b"still here" in server.seen

                here.gateway.use(Route(network=Network()))
                assert (await here.ask(get(server, "b.example.com"))).startswith(
                    b"HTTP/1.1 403 this sandbox has no"
                )

    run(work)


def test_n13_bytes_are_bounded():
    """What is beyond ends the connection, and the next one is refused."""

    async def work() -> None:
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(1 << 20)

        async with served(answer) as server:
            async with world(listed(server, "api.example.com", max_bytes=300_000)) as here:
                said = await here.ask(get(server))
                assert len(said) < 300_000 + (1 << 17)
                assert (await here.ask(get(server))).startswith(b"HTTP/1.1 403 this sandbox has moved all")

    run(work)


def test_n13_whoever_says_nothing_is_not_waited_for():
    """Neither for a head that comes byte by byte, nor for a tunnel in which nothing moves."""

    async def work() -> None:
        async with served(b"") as server:
            async with world(listed(server, "api.example.com"), head_seconds=0.2, idle_seconds=0.2) as here:
                guest = here.connect()

                async def drip() -> None:
                    while True:
                        await guest.send(b"A")
                        await asyncio.sleep(0.02)

                dripping = asyncio.create_task(drip())
                assert (await guest.rest()).startswith(b"HTTP/1.1 408")
                dripping.cancel()
                await asyncio.gather(dripping, return_exceptions=True)
                guest.sock.close()
                await asyncio.gather(guest.task)

                assert (
                    await here.say(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
                ).startswith(b"HTTP/1.1 200")
                assert await here.say(get(server)) != b"x"

    run(work)


def test_n13_nothing_is_read_ahead():
    """Of what a guest does not take, no more is fetched than lies on the way."""

    async def work() -> None:
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(64 << 20)

        async with served(answer) as server, world(listed(server, "api.example.com")) as here:
            guest = here.connect()
            await guest.send(get(server))
            await guest.receive()
            before = -1

            while here.last.bytes_received != before:
                before = here.last.bytes_received
                await asyncio.sleep(0.05)

            assert before < 8 << 20

    run(work)


def test_n14_a_secret_goes_to_its_host_alone():
    """Over plain http where it was named so; what the guest sends under that name is left out."""

    async def work() -> None:
        async with served() as server, served() as other:
            allow = [f"api.example.com:{server.port}", f"other.example.com:{other.port}"]
            network = Network(
                allow=[*allow, f"{LOOPBACK}:{server.port}", f"{LOOPBACK}:{other.port}"],
                hosts={"api.example.com": LOOPBACK, "other.example.com": LOOPBACK},
                secrets={f"http://api.example.com:{server.port}": {"Authorization": "Bearer hush"}},
            )

            async with world(network) as here:
                mine = b"AUTHORIZATION: mine\r\nAuthorization: mine too\r\nConnection: authorization\r\n"
                assert (await here.ask(get(server, more=mine))).startswith(OK)
                assert server.seen[0].count(b"Bearer hush") == 1
                assert b"mine" not in server.seen[0]

                assert (await here.ask(get(other, "other.example.com", more=mine))).startswith(OK)
                assert b"hush" not in other.seen[0]

                tunnel = b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port
                guest = here.connect()
                await guest.send(tunnel)
                await guest.receive_until(b"\r\n\r\n")
                await guest.send(b"GET / HTTP/1.1\r\nHost: api.example.com:%d\r\n\r\n" % server.port)
                assert (await guest.rest()).startswith(OK)
                assert b"Bearer hush" in server.seen[1]
                assert "hush" not in str(here.gateway.records)

    run(work)


def test_n14_a_secret_for_https_is_put_into_the_request(certificates: Certificates):
    """By an authority that only this sandbox trusts; the server's own certificate is really looked at."""

    async def work() -> None:
        async with served(context=certificates.server_context("api.example.com")) as server:
            network = listed(
                server,
                "api.example.com",
                "wrong.example.com",
                secrets={
                    f"{name}.example.com:{server.port}": {"Authorization": "Bearer hush"}
                    for name in ("api", "wrong")
                },
            )

            async with world(network) as here:
                bundle = here.gateway.route.bundle
                assert bundle is not None
                context = ssl.create_default_context(cadata=bundle.decode("latin-1"))
                guest = here.connect()
                await guest.send(b"CONNECT api.example.com:%d HTTP/1.1\r\n\r\n" % server.port)
                await guest.receive_until(b"\r\n\r\n")
                # The default port of https stands in no Host.
                said = await tls(guest, "api.example.com", context)
                assert said.startswith(b"HTTP/1.1 400")

                said = await asked_over_tls(here, server, "api.example.com", context)
                assert said.startswith(OK)
                assert b"Authorization: Bearer hush" in server.seen[-1]

                said = await asked_over_tls(here, server, "wrong.example.com", context)
                assert said.startswith(
                    b"HTTP/1.1 502 the certificate of wrong.example.com is not to be trusted"
                )
                assert not any(b"wrong" in data for data in server.seen)

    run(work)


async def asked_over_tls(here: Any, server: Any, name: str, context: ssl.SSLContext) -> bytes:
    near, far = socket.socketpair()
    near.setblocking(False)
    carrying = asyncio.create_task(serve(here.gateway, near))
    reader, writer = await asyncio.open_connection(sock=far)
    writer.write(b"CONNECT %s:%d HTTP/1.1\r\n\r\n" % (name.encode(), server.port))
    await reader.readuntil(b"\r\n\r\n")
    await writer.start_tls(context, server_hostname=name)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: %s:%d\r\nAuthorization: mine\r\n\r\n" % (name.encode(), server.port)
    )
    said = b""

    try:
        while data := await reader.read(1 << 16):
            said += data
    except ssl.SSLError:
        pass

    writer.close()
    await carrying
    return said
