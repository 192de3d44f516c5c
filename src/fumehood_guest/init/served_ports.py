"""Ports of the sandbox's loopback on which the host listens, for programs in the sandbox.

Runs in init, which opens such a port when the host asks for it, and closes none. A port that a program has opened
before stays that program's. A connection is relayed like one to the egress proxy, with a separate bound.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Callable, Dict, Tuple

from fumehood_guest.init.arrivals import Arrivals
from fumehood_guest.init.egress import open_listener
from fumehood_wire.init_messages import MAX_ARRIVALS, MAX_SERVED_PORTS

Reply = Tuple[Any, bytes]


class GuestServedPorts:
    """All ports on which the host listens, except the port of the proxy.

    Args:
        init: Provides the loop and the channel.
    """

    def __init__(self, init: Any) -> None:
        self._init = init
        self._ports: Dict[int, Arrivals] = {}

    def verbs(self) -> Dict[str, Callable[..., Reply]]:
        """Returns the request handlers by their names on the wire."""
        return {"listen": self.listen, "carry_arrival": self.carry, "drop_arrival": self.drop}

    def listen(self, port: int) -> Reply:
        """Listens on a port of the loopback for connections to report to the host; a second call does nothing."""
        if port in self._ports:
            return None, b""

        if len(self._ports) >= MAX_SERVED_PORTS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        event = {"event": "arrival", "port": port}
        arrivals = self._ports[port] = Arrivals(self._init, open_listener(port), event, MAX_ARRIVALS)
        arrivals.begin()
        return None, b""

    def carry(self, port: int, connection_id: int) -> Reply:
        """Connects a waiting connection to the stream that came with the request."""
        return self._ports[port].carry(connection_id)

    def drop(self, port: int, connection_id: int) -> Reply:
        """Closes a waiting connection."""
        return self._ports[port].drop(connection_id)
