"""Packets: one JSON message each, with descriptors, on the sockets between the host and the processes of the base jail.

Used by founder and zygote. These sockets keep packets whole (SOCK_SEQPACKET), and only our own code speaks on
them.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Dict, List, Tuple

_MAX_PACKET_BYTES = 1 << 18
# The most that one request carries: see `init.main`, `Zygote` and `Founder`.
_MAX_FDS = 48


class Packets:
    """One end of such a socket; when the host has closed the other, this process ends."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def receive(self) -> Tuple[Dict[str, Any], List[int]]:
        """Waits for a packet and returns its message and descriptors."""
        data, fds, _, _ = socket.recv_fds(self._sock, _MAX_PACKET_BYTES, _MAX_FDS)

        if not data:
            os._exit(0)

        for fd in fds:
            os.set_inheritable(fd, False)

        return json.loads(data), fds

    def send(self, message: Dict[str, Any]) -> None:
        """Sends a message."""
        try:
            self._sock.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


def close_all(fds: List[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)
