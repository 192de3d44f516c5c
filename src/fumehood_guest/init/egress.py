"""The sandbox's end of the egress proxy: a port on its loopback, where programs find the host's proxy.

Runs in init, which listens before any user code exists, so that no user process can take the port.
"""

from __future__ import annotations

import socket
from typing import Any, Callable, Dict, Tuple

from fumehood_guest.init.arrivals import Arrivals
from fumehood_jail.errors import JailError
from fumehood_wire.init_messages import MAX_PROXY_CONNECTIONS

Reply = Tuple[Any, bytes]

PORT = 3128
_BACKLOG = 128


def listen() -> socket.socket:
    """Opens the listening port.

    Before: the loopback is up, no user code runs here yet.

    Raises:
        JailError: The port cannot be opened.
    """
    try:
        return open_listener(PORT)
    except OSError as error:
        raise JailError("listen for the proxy", error.errno or 0, str(error)) from error


def open_listener(port: int) -> socket.socket:
    """Returns a socket that listens on a port of the loopback, and does not block.

    Raises:
        OSError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise

    return listener


class Egress(Arrivals):
    """All connections of the sandbox to the proxy.

    Args:
        init: Provides the loop and the channel.
        listener: The port.
    """

    def __init__(self, init: Any, listener: socket.socket) -> None:
        super().__init__(init, listener, {"event": "egress"}, MAX_PROXY_CONNECTIONS)

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {"carry_egress": self.carry, "drop_egress": self.drop}
