"""Relays: connections of the host to servers inside the sandbox.

Only a process of the sandbox's network namespace can reach its loopback, so init connects there, and copies bytes
between that connection and a socket that the host has sent. The host gets no descriptor of the guest: another process
that shares it could make it block, and the host with it. Nothing here blocks: the host sets the time- out for
connecting, and at most one chunk is buffered in each direction.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Any, Callable, Dict, Optional, Set, Tuple

from fumehood_wire.init_messages import CONNECTED, MAX_STREAMS

Reply = Tuple[Any, bytes]

_PIECE_BYTES = 1 << 16
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Relays:
    """All connections that the host has requested."""

    def __init__(self, init: Any) -> None:
        self._init = init
        # Established connections and attempts.
        self._open: Set[Any] = set()

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {"connect": self.connect}

    def connect(self, port: int) -> Reply:
        """Begins to connect to a port of the loopback; the outcome is sent on the socket that came with the request."""
        (fd,) = self._init.take_fds(1)
        host = socket.socket(fileno=fd)
        host.setblocking(False)

        if len(self._open) >= MAX_STREAMS:
            host.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        attempt = _Attempt(self, self._init, host, port)
        self.note_open(attempt)
        attempt.begin()
        return None, b""

    def note_open(self, one: Any) -> None:
        """Counts a connection."""
        self._open.add(one)

    def note_closed(self, one: Any) -> None:
        """Removes a connection from the count."""
        self._open.discard(one)


class _Attempt:
    """A connection attempt, to one address after the other, for as long as the host waits for it."""

    def __init__(self, relays: Relays, init: Any, host: socket.socket, port: int) -> None:
        self._relays = relays
        self._init = init
        self._host = host
        self._port = port
        self._addresses = iter(_ADDRESSES)
        self._server: Optional[socket.socket] = None
        # Without requested events, only a hang-up is reported.
        init.add_reader(host.fileno(), self._host_gone, 0)

    def begin(self) -> None:
        """Tries the next address."""
        for family, address in self._addresses:
            try:
                self._server = socket.socket(family, socket.SOCK_STREAM)
                self._server.setblocking(False)
                code = self._server.connect_ex((address, self._port))
            except OSError:
                # The address family is not supported, or no descriptor is left.
                self._drop_server()
                continue

            if code == 0:
                self._succeed(self._server)
                return

            if code == errno.EINPROGRESS:
                self._init.add_reader(self._server.fileno(), self._decided, select.POLLOUT)
                return

            self._drop_server()

        self._end()

    def _decided(self, _events: int) -> None:
        server = self._server
        assert server is not None
        self._init.remove_reader(server.fileno())

        if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            self._succeed(server)
            return

        self._drop_server()
        self.begin()

    def _succeed(self, server: socket.socket) -> None:
        try:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._host.send(CONNECTED)
        except OSError:
            self._drop_server()
            self._end()
            return

        self._init.remove_reader(self._host.fileno())
        self._relays.note_closed(self)
        self._relays.note_open(Relay(self._relays, self._init, self._host, server))

    def _host_gone(self, _events: int) -> None:
        self._drop_server()
        self._end()

    def _drop_server(self) -> None:
        if self._server is not None:
            self._init.remove_reader(self._server.fileno())
            self._server.close()
            self._server = None

    def _end(self) -> None:
        """Closes the host's socket, which reports that there is no connection."""
        self._init.remove_reader(self._host.fileno())
        self._host.close()
        self._relays.note_closed(self)


class Relay:
    """An established connection: two independent directions.

    Args:
        relays: Counts it, until it is closed.
        init: Provides the loop.
        host: The host's end.
        server: The other one.
    """

    def __init__(self, relays: Any, init: Any, host: socket.socket, server: socket.socket) -> None:
        self._relays = relays
        self._init = init
        self._ends = (host, server)
        self._directions = (_Direction(host, server), _Direction(server, host))
        self._awaited: Dict[int, int] = {}
        self._watch()

    def _ready(self, _events: int) -> None:
        """Called when one of the sockets is readable, writable, or broken."""
        forth, _ = self._directions

        if forth.is_over and self._host_has_gone():
            # It has closed its socket, not only its sending side: no one reads what the server may still send.
            self.close()
            return

        try:
            for direction in self._directions:
                direction.move()
        except OSError:
            # One side is gone; data for it is lost, and the other side is closed.
            self.close()
            return

        if all(direction.is_over for direction in self._directions):
            self.close()
        else:
            self._watch()

    def close(self) -> None:
        """Closes both sockets."""
        for end in self._ends:
            if end.fileno() in self._awaited:
                self._init.remove_reader(end.fileno())

            end.close()

        self._relays.note_closed(self)

    def _watch(self) -> None:
        """Waits for the events that can make progress, and for no others."""
        forth, back = self._directions
        host, server = self._ends
        wanted = {
            host.fileno(): forth.wants_source | back.wants_target,
            server.fileno(): back.wants_source | forth.wants_target,
        }

        # A hang-up is reported even if no event is requested, and repeatedly: so only watch for it on a host's socket
        # that has already ended its direction.
        watched = {
            fd: events for fd, events in wanted.items() if events or (forth.is_over and fd == host.fileno())
        }

        for fd in wanted:
            if watched.get(fd) == self._awaited.get(fd):
                continue

            if fd in watched:
                self._init.add_reader(fd, self._ready, watched[fd])
            else:
                self._init.remove_reader(fd)

        self._awaited = watched

    def _host_has_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._ends[0].fileno(), 0)
        return bool(poll.poll(0))


class _Direction:
    """Bytes from one socket to the other, with at most one chunk buffered."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._unsent = memoryview(b"")
        self.is_over = False

    @property
    def wants_source(self) -> int:
        """The events to wait for at the source."""
        return 0 if self.is_over or self._unsent else select.POLLIN

    @property
    def wants_target(self) -> int:
        """The events to wait for at the target."""
        return select.POLLOUT if self._unsent else 0

    def move(self) -> None:
        """Copies one chunk, as far as both sides allow; passes on the end of the stream.

        Raises:
            OSError: One of the two is broken.
        """
        try:
            if not self._unsent and not self.is_over:
                self._receive()

            if self._unsent:
                self._unsent = self._unsent[self._target.send(self._unsent) :]
        except BlockingIOError:
            return

    def _receive(self) -> None:
        data = self._source.recv(_PIECE_BYTES)

        if data:
            self._unsent = memoryview(data)
            return

        self.is_over = True
        self._target.shutdown(socket.SHUT_WR)
