"""The host's end of a socket to the base jail: whole messages, with descriptors, never blocking.

Runs in the host process, on the engine's loop. What comes in is bounded and strictly read: the zygote runs
packages that are not ours. What cannot be sent at once waits in order, with descriptors of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fumehood_wire.frames import ProtocolError, parse_json

_MAX_PACKET_BYTES = 1 << 18


class PacketSocket:
    """One such socket.

    Args:
        sock: Connected, of the kind that keeps packets whole; owned from now on.
        on_message: Called with each message. A KeyError, TypeError or ValueError that it raises ends the
        conversation: the
            message was not what it should be.
        on_end: Called once, when the other side has closed or has said something that makes no sense.
    """

    def __init__(
        self, sock: socket.socket, on_message: Callable[[dict[str, Any]], None], on_end: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self.closed = False
        sock.setblocking(False)
        self._loop.add_reader(self._fd, self._receive)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends a message; the descriptors remain the caller's. On a closed socket it is dropped."""
        if self.closed:
            return

        data = json.dumps(message).encode()

        if self._unsent or not self._try(data, fds):
            self._unsent.append((data, [os.dup(fd) for fd in fds]))
            self._loop.add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Closes the socket without a call of `on_end`; closing twice is no error."""
        if self.closed:
            return

        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()

        while self._unsent:
            _close_all(self._unsent.popleft()[1])

    def _try(self, data: bytes, fds: Sequence[int]) -> bool:
        """Sends now; false if the socket takes nothing now."""
        try:
            socket.send_fds(self._sock, [data], list(fds))
        except BlockingIOError:
            return False
        except OSError:
            # The other side has gone; the reader hears of it.
            return True

        return True

    def _flush(self) -> None:
        while self._unsent and self._try(*self._unsent[0]):
            _close_all(self._unsent.popleft()[1])

        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _receive(self) -> None:
        while not self.closed:
            try:
                data = self._sock.recv(_MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""

            try:
                if not data:
                    raise ValueError("closed")

                message: Any = parse_json(data)
                self._on_message(message)
            except (ProtocolError, KeyError, TypeError, ValueError):
                self.close()
                self._on_end()
                return


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
