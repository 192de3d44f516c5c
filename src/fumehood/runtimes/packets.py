"""The host's end of a socket to the base jail: whole messages, with descriptors, never blocking.

Messages are bounded and strictly parsed: the zygote runs packages that are not ours. Each request allows a number of
answers, and one message beyond that number ends the connection: parsing takes time, and a flood would block the loop
for all other sandboxes. What cannot be sent at once is queued in order, with duplicated descriptors. A descriptor is a
plain number that no garbage collector closes: a failure in the middle of several must not leak those already made.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fumehood_wire.frames import ProtocolError, parse_json


def copies(fds: Iterable[int]) -> tuple[int, ...]:
    """Duplicates all descriptors, or none if one duplication fails."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        close_all(made)
        raise

    return tuple(made)


def close_all(fds: Iterable[int]) -> None:
    """Closes all descriptors."""
    for fd in fds:
        os.close(fd)


async def until_readable(fd: int) -> None:
    """Returns when `fd` is readable or at its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, note)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


# struct ucred: the process, its user and its group.
_CREDENTIALS = struct.Struct("3i")
_MAX_PACKET_BYTES = 1 << 18
# How much is received in one turn of the loop, for fairness.
_MAX_TURN_PACKETS = 64
_MAX_TURN_BYTES = 1 << 16
# The peer has gone; the reader reports it.
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


class PacketSocket:
    """One packet socket.

    Args:
        sock: Connected, of a kind that preserves message boundaries; owned from now on.
        on_message: Called with each message. A KeyError, TypeError or ValueError that it raises marks the message as
            invalid, and closes the socket.
        on_end: Called once, when the peer has closed or has sent an invalid message.
    """

    def __init__(
        self, sock: socket.socket, on_message: Callable[[dict[str, Any]], None], on_end: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        # How many messages the peer may still send.
        self._allowed = 0
        self.closed = False
        sock.setblocking(False)
        self._loop.add_reader(self._fd, self._receive)

    def send(self, message: dict[str, Any], fds: Sequence[int] = (), *, answers: int = 0) -> None:
        """Sends a message; the caller keeps its descriptors. On a closed socket the message is dropped.

        Args:
            message: The message.
            fds: Descriptors to send with the message.
            answers: The most messages that the peer may send because of it, now or later.

        Raises:
            OSError: The message cannot be sent now or later; no part of it was sent.
        """
        if self.closed:
            return

        self._allowed += answers
        data = json.dumps(message).encode()

        if self._unsent or not self._try(data, fds):
            self._unsent.append((data, copies(fds)))
            self._loop.add_writer(self._fd, self._flush)

    def close(self) -> None:
        """Closes the socket without a call of `on_end`; a second call does nothing."""
        if self.closed:
            return

        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()

        while self._unsent:
            close_all(self._unsent.popleft()[1])

    def _try(self, data: bytes, fds: Sequence[int]) -> bool:
        """Sends now; returns False if the socket would block."""
        try:
            socket.send_fds(self._sock, [data], list(fds))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _GONE:
                raise

        return True

    def _try_late(self, data: bytes, fds: Sequence[int]) -> bool:
        """Like `_try`, but drops a message that cannot be sent: its sender gets a time-out."""
        try:
            return self._try(data, fds)
        except OSError:
            return True

    def _flush(self) -> None:
        while self._unsent and self._try_late(*self._unsent[0]):
            close_all(self._unsent.popleft()[1])

        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _receive(self) -> None:
        received_bytes = 0

        for _ in range(_MAX_TURN_PACKETS):
            try:
                data = self._sock.recv(_MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""

            received_bytes += len(data)
            self._allowed -= 1
            try:
                if not data:
                    raise ValueError("closed")

                if self._allowed < 0:
                    raise ValueError("no order has asked for it")

                message: Any = parse_json(data)
                self._on_message(message)
            except (ProtocolError, KeyError, TypeError, ValueError):
                self.close()
                self._on_end()

            if self.closed or received_bytes > _MAX_TURN_BYTES:
                return


async def receive_word(sock: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """Waits for a few bytes on a stream; returns them and the sender's pid, or 0 if unknown."""
    await until_readable(sock.fileno())
    word, ancillary, _, _ = sock.recvmsg(max_bytes, socket.CMSG_SPACE(_CREDENTIALS.size))

    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return word, int(_CREDENTIALS.unpack(content)[0])

    return word, 0
