"""Connections whose clients have gone are not accepted; all others are, in order."""

from __future__ import annotations

import socket
import struct

import pytest

from fumehood.server.listener import Listener


def connected(listener: socket.socket, sent: bytes = b"GET / HTTP/1.1\r\n") -> socket.socket:
    client = socket.create_connection(listener.getsockname())
    client.sendall(sent)
    return client


def reset(client: socket.socket) -> None:
    """End it as one that breaks off: with RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("kind", [Listener, socket.socket])
def test_connections_that_are_over_are_passed_over(kind: type[socket.socket]) -> None:
    """A plain socket, the control, returns each of them; half-closed ones can still be answered, and are returned."""
    with kind(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        listener.setblocking(False)

        for _ in range(3):
            reset(connected(listener))

        alive, half = connected(listener, b"first"), connected(listener, b"second")
        half.shutdown(socket.SHUT_WR)
        reset(connected(listener))
        found = []

        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                break

            with sock:
                sock.setblocking(True)
                found.append(sock.recv(6))

        alive.close()
        half.close()

    expected = [b"first", b"second"]
    assert found == (expected if kind is Listener else [*[b"GET / "] * 3, *expected, b"GET / "])
