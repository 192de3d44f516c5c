"""Packets: messages on the sockets between the host and the base jail, each one JSON text with descriptors.

Used by jail init and zygote. These sockets preserve message boundaries (SOCK_SEQPACKET), and only our own code uses
them. They are read and written with as few Python operations as possible: jail init and zygote do it for each sandbox,
and the pages they touch are copied, since their forks still share them.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Dict, List, Tuple

# The first packet carries the system call filters; the others are far smaller, and need no mapped buffer.
_MAX_FIRST_BYTES = 1 << 18
_MAX_PACKET_BYTES = 1 << 14
# The most descriptors of one request: see `init.main`, `Zygote` and `JailInit`.
_MAX_FDS = 48
_FDS_BYTES = socket.CMSG_SPACE(_MAX_FDS * 4)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
# The scanner of the JSON decoder, without the checks of `json.loads`.
_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


class Packets:
    """One end of such a socket; this process exits when the host has closed the other end."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._most_bytes = _MAX_FIRST_BYTES

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def receive(self) -> Tuple[Dict[str, Any], List[int]]:
        """Waits for a packet and returns its message and descriptors."""
        data, ancillary, _, _ = self._sock.recvmsg(self._most_bytes, _FDS_BYTES, _CLOSE_ON_EXEC)
        self._most_bytes = _MAX_PACKET_BYTES

        if not data:
            os._exit(0)

        fds = memoryview(ancillary[0][2]).cast("i").tolist() if ancillary else []
        return parse(data), fds

    def send(self, message: Dict[str, Any]) -> None:
        """Sends a message as JSON; ends this process if the host has gone."""
        try:
            self._sock.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)

    def tell(self, kind: str, **numbers: int) -> None:
        """Sends a message whose fields are all numbers; ends this process if the host has gone."""
        fields = "".join([f', "{name}": {number}' for name, number in numbers.items()])
        try:
            self._sock.send(f'{{"type": "{kind}"{fields}}}'.encode())
        except OSError:
            os._exit(0)


def parse(data: bytes) -> Any:
    """Parses JSON that the host has written."""
    return _scan(data.decode(), 0)[0]


def close_all(fds: List[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)
