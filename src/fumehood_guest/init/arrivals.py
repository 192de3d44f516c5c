"""Connections that programs in the sandbox make to the host: each gets a stream from the host, and a relay to it.

Init must not interpret the traffic: for each connection that a listening socket accepts it requests a stream from the
host by an event, and copies bytes between the two. Their number is bounded here and by the host; further ones wait in
the kernel's queue.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Dict, Mapping, Optional, Set, Tuple

from fumehood_guest.init.relays import Relay

Reply = Tuple[Any, bytes]

_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Arrivals:
    """The connections of one listening socket.

    Args:
        init: Provides the loop and the channel.
        listener: The socket, not blocking.
        event: The event that asks the host for a stream; the number of the connection is added to it.
        most: How many connections may be open or wait for a stream.
    """

    def __init__(self, init: Any, listener: socket.socket, event: Mapping[str, Any], most: int) -> None:
        self._init = init
        self._listener = listener
        self._event = dict(event)
        self._most = most
        self._is_listening = False
        self._next_number = 1
        # Closed for a moment when descriptors run out, to accept and close a connection: otherwise the poller would
        # report the waiting one without end.
        self._spare: Optional[int] = None
        self._keep_a_spare()
        # Connections for which the host was asked for a stream, and those with one.
        self._waiting: Dict[int, socket.socket] = {}
        self._carried: Set[Any] = set()

    def begin(self) -> None:
        """Accepts connections while there is room for them."""
        has_room = len(self._waiting) + len(self._carried) < self._most

        if has_room and not self._is_listening:
            self._init.add_reader(self._listener.fileno(), self._accept)
        elif not has_room and self._is_listening:
            self._init.remove_reader(self._listener.fileno())

        self._is_listening = has_room

    def carry(self, connection_id: int) -> Reply:
        """Connects a waiting connection to the stream that came with the request."""
        (fd,) = self._init.take_fds(1)
        host = socket.socket(fileno=fd)
        client = self._waiting.pop(connection_id, None)

        if client is None:
            host.close()
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

        host.setblocking(False)
        self.note_open(Relay(self, self._init, host, client))
        return None, b""

    def drop(self, connection_id: int) -> Reply:
        """Closes a waiting connection."""
        client = self._waiting.pop(connection_id, None)

        if client is not None:
            client.close()

        self.begin()
        return None, b""

    def note_open(self, one: Any) -> None:
        """Adds a connection to the number of open ones."""
        self._carried.add(one)

    def note_closed(self, one: Any) -> None:
        """Removes a connection from the count."""
        self._carried.discard(one)
        self.begin()

    def _accept(self, _events: int) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NONE_LEFT:
                self._turn_away()

            return

        client.setblocking(False)
        number = self._next_number
        self._next_number += 1
        self._waiting[number] = client
        self._init.send_event({**self._event, "connection_id": number})
        self.begin()

    def _turn_away(self) -> None:
        """Closes the next connection, for which no descriptor is left."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

        try:
            client, _ = self._listener.accept()
            client.close()
        except OSError:
            pass  # the client has closed it, or another thread was faster

        self._keep_a_spare()

    def _keep_a_spare(self) -> None:
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # the next connection tries again
