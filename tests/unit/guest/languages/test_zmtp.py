"""ZMTP against a peer that lies, and against one that speaks it right."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from fumehood_guest.languages.zmtp import DEALER, SUB, ZmtpError, ZmtpSocket

GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32
READY = b"\x04\x06\x05READY"
SECONDS = 10


class Peer:
    """Accepts one connection and sends what it is given."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""

    def say(self, content: bytes) -> threading.Thread:
        def serve() -> None:
            connection, _ = self._listener.accept()

            with connection:
                connection.settimeout(SECONDS)
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)

                while piece := connection.recv(4096):
                    self.heard += piece

        thread = threading.Thread(target=serve)
        thread.start()
        return thread

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def messages(client: ZmtpSocket) -> Iterator[list[bytes]]:
    while True:
        while (message := client.take()) is not None:
            yield message

        client.read()


def test_messages_come_whole(peer):
    """Of several frames, short and long, with a ping between; a subscription is sent."""
    long = b"x" * 70_000
    ping = b"\x04\x09\x04PING\0\0zz"
    content = b"\x01\x02ab" + b"\x02" + struct.pack("!Q", len(long)) + long + ping + b"\x00\x01c"
    thread = peer.say(GREETING + READY + content)
    client = ZmtpSocket(SUB, peer.port, SECONDS)
    found = messages(client)

    assert next(found) == [b"ab", long]
    assert next(found) == [b"c"]

    with pytest.raises(ZmtpError):
        next(found)

    client.send([b"one", b"two"])
    client.close()
    thread.join(SECONDS)
    assert b"\x00\x01\x01" in peer.heard
    assert b"\x04PONGzz" in peer.heard
    assert peer.heard.endswith(b"\x01\x03one\x00\x03two")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n" + b" " * 80,
        GREETING[:10] + b"\x02" + GREETING[11:] + READY,
        GREETING + b"\x00\x06\x05READY",
        GREETING + b"\x04\x06\x05ERROR",
        GREETING + b"\x06" + struct.pack("!Q", 1 << 60),
    ],
)
def test_a_peer_that_lies_is_refused(peer, said):
    """In its greeting, or by a frame without an end."""
    thread = peer.say(said)

    with pytest.raises(ZmtpError):
        ZmtpSocket(DEALER, peer.port, SECONDS)

    thread.join(SECONDS)


def test_a_message_has_a_bounded_number_of_frames(peer):
    """However many follow."""
    thread = peer.say(GREETING + READY + b"\x01\x00" * 100)
    client = ZmtpSocket(DEALER, peer.port, SECONDS)

    with pytest.raises(ZmtpError, match="too many frames"):
        next(messages(client))

    client.close()
    thread.join(SECONDS)
