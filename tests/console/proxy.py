"""A proxy between a browser and a server that breaks connections, for tests of what the page says then.

Runs in threads of the test's process. It forwards bytes; where a request begins as a rule says, the connection ends
before the request has reached the server (`lose`), after the server has answered it (`cut`), or with an answer of the
proxy's own (`refuse`). It never changes what it forwards, save for its own address.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit

_READ_BYTES = 64 * 1024
Fate = Literal["lose", "cut", "refuse"]


class BreakingProxy:
    """A proxy of one server.

    Attributes:
        url: Where it listens.
        met: How many requests have met the rule.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._own = f"127.0.0.1:{self._listener.getsockname()[1]}".encode()
        self._theirs = parts.netloc.encode()
        self.url = f"http://{self._own.decode()}"
        self.met = 0
        self._rule: tuple[bytes, Fate, bytes] | None = None
        self._open: set[tuple[socket.socket, bytes]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, begins: str, fate: Fate, answer: bytes = b"") -> None:
        """Sets what happens to requests that begin so, until `pass_all`."""
        self.met, self._rule = 0, (begins.encode(), fate, answer)

    def pass_all(self) -> None:
        """Breaks nothing any more."""
        self._rule = None

    def break_open(self, begins: str) -> None:
        """Ends the open connections whose last request began so, as of a WebSocket."""
        for client, head in list(self._open):
            if head.startswith(begins.encode()):
                _end(client)

    def close(self) -> None:
        """Ends all connections."""
        _end(self._listener)

        for client, _ in list(self._open):
            _end(client)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        upstream = socket.create_connection(self._server)
        is_cut = threading.Event()
        threading.Thread(target=self._answer, args=(upstream, client, is_cut), daemon=True).start()
        entry = (client, b"")

        with contextlib.suppress(OSError):
            while data := client.recv(_READ_BYTES):
                if b" HTTP/1.1\r\n" in data[:2000]:
                    self._open.discard(entry)
                    entry = (client, data[:200])
                    self._open.add(entry)

                rule = self._rule

                if rule is not None and data.startswith(rule[0]):
                    self.met += 1

                    if rule[1] != "cut":
                        _say(client, rule[2])
                        break

                    is_cut.set()

                upstream.sendall(data.replace(self._own, self._theirs))

        self._open.discard(entry)
        _end(client)
        _end(upstream)

    def _answer(self, upstream: socket.socket, client: socket.socket, is_cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := upstream.recv(_READ_BYTES)) and not is_cut.is_set():
                client.sendall(data)

        _end(client)
        _end(upstream)


def refusal(status: int, retry_after_seconds: int) -> bytes:
    """Returns an answer of a proxy that has no room."""
    return (
        f"HTTP/1.1 {status} Busy\r\nRetry-After: {retry_after_seconds}\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def _say(client: socket.socket, answer: bytes) -> None:
    client.sendall(answer)
    client.shutdown(socket.SHUT_WR)

    # A connection that ends with bytes unread takes its answer along.
    while answer and client.recv(_READ_BYTES):
        pass


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)

    one.close()
