"""A listening socket that skips connections whose client has gone before they were accepted.

The kernel keeps a connection in its queue though the client has reset it: to build a protocol for each, and to have the
app read a request that was broken off, costs a hundred times as much as detecting that it is reset. It must never skip
a connection that can still be answered.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

# include/net/tcp_states.h
_TCP_CLOSE = 7
_TCP_CLOSE_WAIT = 8
# In one call; the event loop has other work between two calls.
_PASSED_OVER_AT_ONCE = 256


class Listener(socket.socket):
    """A listening socket of TCP."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection that is not reset.

        Raises:
            BlockingIOError: No connection is waiting, or many were reset: then the socket becomes readable again.
        """
        for _ in range(_PASSED_OVER_AT_ONCE):
            sock, address = super().accept()

            if not is_over(sock):
                return sock, address

            sock.close()

        raise BlockingIOError


def is_over(sock: socket.socket) -> bool:
    """Returns whether a connection is reset; one on which the client has only finished sending is not over."""
    return _state(sock) == _TCP_CLOSE


def has_left(sock: socket.socket) -> bool:
    """Returns whether the client has reset the connection, or finished sending: uvicorn answers neither."""
    return _state(sock) in (_TCP_CLOSE, _TCP_CLOSE_WAIT)


def _state(sock: socket.socket) -> int | None:
    # The first byte of struct tcp_info is the state.
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if sys.platform == "linux" else None
