"""A policy that changes while a connection is on its way (row N12), and a tunnel within a tunnel (N11)."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from fumehood.egress import dialer, proxy_connection
from fumehood.egress.gateway import Route
from fumehood.values.network import Network

from .conftest import LOOPBACK, run, served, world
from .test_client_hello import hello


def test_n12_a_name_that_is_denied_while_it_is_looked_up_is_not_dialled(monkeypatch):
    """Its address may still be listed for another name: what was decided is the name."""

    async def work() -> None:
        async with served() as server, world() as here:
            asked, told = asyncio.Event(), asyncio.Event()

            async def look_up(name: str) -> list[ipaddress.IPv4Address]:
                asked.set()
                await told.wait()
                return [ipaddress.IPv4Address(LOOPBACK)]

            monkeypatch.setattr(here.gateway.resolver, "look_up", look_up)
            place = f"{LOOPBACK}:{server.port}"
            here.gateway.use(Route(network=Network(allow=[f"a.example.com:{server.port}", place])))
            guest = here.connect()
            await guest.send(b"GET http://a.example.com:%d/ HTTP/1.1\r\n\r\n" % server.port)
            await asked.wait()
            here.gateway.use(Route(network=Network(allow=[place])))
            told.set()
            assert (await guest.rest()).startswith(b"HTTP/1.1 403 a.example.com")
            assert server.seen == []
            assert here.last.verdict == "denied"

            # Control: without the change it is passed on.
            here.gateway.use(Route(network=Network(allow=[f"a.example.com:{server.port}", place])))
            answer = await here.ask(b"GET http://a.example.com:%d/ HTTP/1.1\r\n\r\n" % server.port)
            assert answer.startswith(b"HTTP/1.1 200")

    run(work)


def test_n12_an_address_that_is_denied_while_it_is_dialled_is_left(monkeypatch):
    """Also one that was not the first of its name."""
    second = "127.0.0.2"

    async def work() -> None:
        async with served() as server, world() as here:
            dialled, goes_on = asyncio.Event(), asyncio.Event()

            async def look_up(name: str) -> list[ipaddress.IPv4Address]:
                return [ipaddress.IPv4Address(second), ipaddress.IPv4Address(LOOPBACK)]

            async def dial(addresses, port):
                dialled.set()
                await goes_on.wait()
                # Nothing listens at the first one.
                return await dialer.dial(addresses, port)

            monkeypatch.setattr(here.gateway.resolver, "look_up", look_up)
            monkeypatch.setattr(proxy_connection, "dial", dial)
            allow = [f"{name}:{server.port}" for name in ("a.example.com", LOOPBACK, second)]
            here.gateway.use(Route(network=Network(allow=allow)))
            guest = here.connect()
            await guest.send(b"GET http://a.example.com:%d/ HTTP/1.1\r\n\r\n" % server.port)
            await dialled.wait()
            here.gateway.use(Route(network=Network(allow=allow, deny=[LOOPBACK])))
            goes_on.set()
            await guest.rest()
            assert server.seen == []
            assert here.last.verdict == "denied"

            here.gateway.use(Route(network=Network(allow=allow)))
            answer = await here.ask(b"GET http://a.example.com:%d/ HTTP/1.1\r\n\r\n" % server.port)
            assert answer.startswith(b"HTTP/1.1 200")

    run(work)


def test_n11_a_tunnel_is_not_asked_for_inside_of_a_tunnel():
    """A server for which CONNECT has no body would take the body for a request of its own."""

    async def work() -> None:
        async with served() as server, world() as here:
            place = b"%s:%d" % (LOOPBACK.encode(), server.port)
            here.gateway.use(Route(network=Network(allow=[place.decode()])))

            for method, answered in ((b"CONNECT", b""), (b"GET", b"HTTP/1.1 200")):
                guest = here.connect()
                await guest.send(b"CONNECT %s HTTP/1.1\r\n\r\n" % place)
                assert b" 200 " in await guest.receive_until(b"\r\n\r\n")
                await guest.send(b"%s / HTTP/1.1\r\nHost: %s\r\n\r\n" % (method, place))
                assert (await guest.rest()).startswith(answered)
                assert (method in b"".join(server.seen)) is bool(answered)

    run(work)


@pytest.mark.parametrize("by", ["host", "sni"])
def test_n12_a_name_that_was_asked_for_in_a_tunnel_to_an_address_counts(by):
    """The tunnel goes to an address, and inside of it a name is asked for: with the name it ends."""

    async def work() -> None:
        async with served(answer=b"") as server, world() as here:
            place, name = f"{LOOPBACK}:{server.port}", f"a.example.com:{server.port}"
            here.gateway.use(Route(network=Network(allow=[place, name])))
            guest = here.connect()
            await guest.send(b"CONNECT %s HTTP/1.1\r\n\r\n" % place.encode())
            assert b" 200 " in await guest.receive_until(b"\r\n\r\n")
            request = b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode()
            await guest.send(request if by == "host" else hello("a.example.com"))

            while not any(server.seen):
                await asyncio.sleep(0)

            # Control: a change that leaves both allowed leaves it alone.
            here.gateway.use(Route(network=Network(allow=[place, name, "b.example.com"])))
            await asyncio.sleep(0)
            assert not guest.task.done()

            here.gateway.use(Route(network=Network(allow=[place])))
            assert await guest.rest() == b""
            assert here.last.verdict == "denied"
            assert "a.example.com" in here.last.rule

    run(work)
