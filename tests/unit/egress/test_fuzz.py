"""Whatever a guest sends, a connection ends as they do: no fault of ours, nothing dialled that is not allowed."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

from tests.unit.egress.conftest import run, world

from fumehood import Network
from fumehood.egress import dialer

_CASES = 4_000
_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"
_SEEDS = (
    b"GET http://api.example.com/a?b=c HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n",
    b"POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\n\r\nhello",
    b"POST http://api.example.com/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n" + _HELLO,
    b"CONNECT api.example.com:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb" + _HELLO,
    b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
)
_PIECES = (
    b"\r\n",
    b"\n",
    b"\0",
    b"@",
    b"\\",
    b"evil.com",
    b":",
    b"[::1]",
    b"%00",
    b" ",
    b"Host: evil.com\r\n",
    b"\xff",
)


def mutated(chance: random.Random) -> bytes:
    data = bytearray(chance.choice(_SEEDS))

    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)

        if kind == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at:at] = chance.choice(_PIECES)
        elif kind == 2:
            del data[at : at + chance.randrange(1, 8)]
        else:
            data[at:at] = data[chance.randrange(len(data) or 1) :][: chance.randrange(1, 20)]

    return bytes(data)


def test_whatever_comes_ends_well(monkeypatch):
    """4,000 mutations of what clients say; a server that takes everything and says nothing stands behind all names."""
    dialled: set[tuple[str, int]] = set()
    far: list[socket.socket] = []

    async def connect(address: Any, port: int) -> socket.socket:
        dialled.add((str(address), port))
        near, other = socket.socketpair()
        near.setblocking(False)
        other.shutdown(socket.SHUT_WR)
        far.append(other)
        return near

    monkeypatch.setattr(dialer, "_connect", connect)

    async def work() -> None:
        chance = random.Random(11)
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        network = Network(allow=["api.example.com", "127.0.0.9"], hosts={"api.example.com": "127.0.0.9"})

        async with world(network) as here:
            for _ in range(_CASES):
                guest = here.connect()
                await guest.send(mutated(chance))

                try:
                    guest.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

                await guest.rest()
                guest.sock.close()
                await guest.task

                while far:
                    other = far.pop()
                    lines = other.recv(1 << 16).lower().split(b"\r\n")
                    other.close()
                    assert not any(line.startswith(b"host:") and b"evil" in line for line in lines), lines

        assert faults == []
        assert dialled == {("127.0.0.9", 80), ("127.0.0.9", 443)}

    run(work)
