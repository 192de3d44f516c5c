"""A gateway with a guest's end to write to, and real servers on the loopback behind it: no sandbox is needed."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fumehood.egress.gateway import Gateway, ProxyLimits
from fumehood.egress.proxy_connection import serve
from fumehood.egress.route import prepare_route
from fumehood.engine.channel import open_pair
from fumehood.values.network import Network

LOOPBACK = "127.0.0.1"


class Server:
    """A server on the loopback that keeps what it was sent and says what it was told to say."""

    def __init__(self, answer: bytes, context: ssl.SSLContext | None, greeting: bytes = b"") -> None:
        self.answer = answer
        self.context = context
        self.greeting = greeting
        self.seen: list[bytes] = []
        self.names: list[str | None] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        if self.context is not None:
            self.context.sni_callback = lambda _sock, name, _context: self.names.append(name)

        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = len(self.seen)
        self.seen.append(b"")

        if self.greeting:
            writer.write(self.greeting)

        try:
            while data := await reader.read(1 << 16):
                self.seen[index] += data

                if b"\r\n\r\n" in self.seen[index] and self.answer:
                    writer.write(self.answer)
                    await writer.drain()

                    if b"close" in self.answer.lower():
                        break
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


class Guest:
    """The guest's end of one connection to the proxy."""

    def __init__(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self.sock = sock
        self.task = task
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self.sock, data)
        except ConnectionError:
            return  # it has been answered already

    async def receive(self) -> bytes:
        try:
            return await self._loop.sock_recv(self.sock, 1 << 16)
        except ConnectionError:
            return b""

    async def receive_until(self, mark: bytes) -> bytes:
        data = b""

        while mark not in data:
            piece = await self.receive()

            if not piece:
                break

            data += piece

        return data

    async def rest(self) -> bytes:
        """All that comes up to the end."""
        data = b""

        while piece := await self.receive():
            data += piece

        return data


class World:
    """A gateway and its connections."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._guests: list[Guest] = []

    def connect(self) -> Guest:
        near, far = open_pair()
        far.setblocking(False)
        guest = Guest(far, asyncio.create_task(serve(self.gateway, near)))
        self._guests.append(guest)
        return guest

    async def ask(self, data: bytes) -> bytes:
        """Sends all of it, ends, and returns all that comes."""
        guest = self.connect()
        await guest.send(data)

        try:
            guest.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

        return await guest.rest()

    async def say(self, data: bytes) -> bytes:
        """Sends all of it, stays, and returns all that comes."""
        guest = self.connect()
        await guest.send(data)
        return await guest.rest()

    @property
    def last(self) -> Any:
        return self.gateway.records[-1]

    async def close(self) -> None:
        for guest in self._guests:
            guest.sock.close()
            guest.task.cancel()

        await asyncio.gather(*(guest.task for guest in self._guests), return_exceptions=True)


@asynccontextmanager
async def world(network: Network | None = None, **limits: float) -> AsyncIterator[World]:
    gateway = Gateway("box", ProxyLimits(**limits))
    gateway.use(await prepare_route(network or Network()))
    made = World(gateway)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def served(
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
    context: ssl.SSLContext | None = None,
    greeting: bytes = b"",
) -> AsyncIterator[Server]:
    server = Server(answer, context, greeting)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def listed(server: Server, *names: str, **more: Any) -> Network:
    """A network in which these names are a server on the loopback."""
    allow = [*(f"{name}:{server.port}" for name in names), f"{LOOPBACK}:{server.port}"]
    return Network(allow=allow, hosts=dict.fromkeys(names, LOOPBACK), **more)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


class Certificates:
    """An authority of the test's own, and certificates of names."""

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._common_name = NameOID.COMMON_NAME
        self._x509, self._hashes, self._serialization = x509, hashes, serialization
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._authority = self._certify(self._name, x509.BasicConstraints(ca=True, path_length=0), None)
        self.authority_file = folder / "authority.pem"
        self.authority_file.write_bytes(self._authority.public_bytes(serialization.Encoding.PEM))

    def server_context(self, name: str) -> ssl.SSLContext:
        subject = self._x509.Name([self._x509.NameAttribute(self._common_name, name)])
        leaf = self._certify(subject, None, name)
        encoding = self._serialization
        key = self._key.private_bytes(
            encoding.Encoding.PEM, encoding.PrivateFormat.PKCS8, encoding.NoEncryption()
        )
        file = self._folder / f"{name}.pem"
        file.write_bytes(leaf.public_bytes(encoding.Encoding.PEM) + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _certify(self, subject: Any, constraints: Any, name: str | None) -> Any:
        x509 = self._x509
        now = datetime.datetime.now(datetime.UTC)
        public = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        )

        if constraints is not None:
            builder = builder.add_extension(constraints, True)

        if name is not None:
            try:
                general = x509.IPAddress(ipaddress.ip_address(name))
            except ValueError:
                general = x509.DNSName(name)

            builder = builder.add_extension(x509.SubjectAlternativeName([general]), False)

        return builder.sign(self._key, self._hashes.SHA256())


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Certificates]:
    """Certificates that this machine trusts for as long as the test runs."""
    pytest.importorskip("cryptography", reason="needs the extra `egress`")
    made = Certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority_file))
    return made
