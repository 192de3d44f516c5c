"""A client's sockets to a Jupyter kernel: ZMTP 3.0 without security, with the standard library alone.

Runs in a context. It knows the two kinds that a client of a kernel needs: DEALER, which sends and receives, and SUB,
which receives all. Messages of a kernel are as hostile as user code: sizes are bounded, and a malformed one raises
`ZmtpError`.
"""

from __future__ import annotations

import socket
import struct
from typing import List, Optional, Tuple, Union

DEALER = "DEALER"
SUB = "SUB"
_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32
_SIGNATURE_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_BYTES = 255
# A message holds at most one result; larger ones are refused by the outlet anyway.
_MAX_FRAME_BYTES = 128 << 20
_MAX_FRAMES = 64
_READ_BYTES = 1 << 16


class ZmtpError(Exception):
    """The peer does not speak the protocol, or has gone."""


class ZmtpSocket:
    """A connected socket.

    Args:
        kind: DEALER or SUB.
        address: The path of a unix socket, or the port of a TCP socket on the loopback.
        seconds: How long the greeting may take.
        identity: The name by which the peer identifies this connection; if empty, the peer chooses one.

    Raises:
        OSError: The connection failed.
        ZmtpError: The peer does not speak the protocol.
    """

    def __init__(self, kind: str, address: Union[str, int], seconds: float, identity: bytes = b"") -> None:
        self._socket = _connected(address, seconds)
        self._unread = bytearray()
        self._frames: List[bytes] = []
        try:
            self._greet(kind, identity)
        except BaseException:
            self._socket.close()
            raise

        self._socket.settimeout(None)

    def fileno(self) -> int:
        """The descriptor to wait on; check `has_message` before waiting."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def send(self, frames: List[bytes]) -> None:
        """Sends a message of several frames."""
        last = len(frames) - 1
        message = b"".join(_framed(frame, _MORE if place < last else 0) for place, frame in enumerate(frames))
        self._socket.sendall(message)

    def take(self) -> Optional[List[bytes]]:
        """Returns the next complete message of the data read so far; None if there is none yet."""
        while (parsed := self._parsed()) is not None:
            flags, body = parsed

            if flags & _COMMAND:
                self._answer(body)
                continue

            self._frames.append(body)

            if len(self._frames) > _MAX_FRAMES:
                raise ZmtpError("a message has too many frames")

            if not flags & _MORE:
                message, self._frames = self._frames, []
                return message

        return None

    def read(self) -> None:
        """Waits for data of the peer and reads it.

        Raises:
            ZmtpError: The peer has gone.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ZmtpError(str(error)) from error

        if not data:
            raise ZmtpError("the kernel has closed a socket")

        self._unread += data

    def _greet(self, kind: str, identity: bytes) -> None:
        ready = b"\x05READY"

        for name, value in (("Socket-Type", kind.encode()), ("Identity", identity)):
            ready += bytes([len(name)]) + name.encode() + struct.pack("!I", len(value)) + value

        self._socket.sendall(_GREETING)

        while len(self._unread) < _SIGNATURE_BYTES:
            self.read()

        if self._unread[:1] != b"\xff" or self._unread[9:10] != b"\x7f" or self._unread[10] < 3:
            raise ZmtpError("the peer speaks no ZMTP 3")

        del self._unread[:_SIGNATURE_BYTES]
        self._socket.sendall(_framed(ready, _COMMAND))

        while (parsed := self._parsed()) is None:
            self.read()

        if not parsed[0] & _COMMAND or not parsed[1].startswith(b"\x05READY"):
            raise ZmtpError("the peer is not ready")

        if kind == SUB:
            # A subscription to everything.
            self._socket.sendall(_framed(b"\x01", 0))

    def _answer(self, body: bytes) -> None:
        if body.startswith(b"\x04PING"):
            # Behind the name and the time to live.
            self._socket.sendall(_framed(b"\x04PONG" + body[7:], _COMMAND))

    def _parsed(self) -> Optional[Tuple[int, bytes]]:
        """Takes one frame off what was read: its flags and its body."""
        if len(self._unread) < 2:
            return None

        flags = self._unread[0]
        head = 9 if flags & _LONG else 2

        if len(self._unread) < head:
            return None

        size = struct.unpack("!Q", self._unread[1:9])[0] if flags & _LONG else self._unread[1]

        if size > _MAX_FRAME_BYTES:
            raise ZmtpError(f"a frame of {size:,} bytes")

        if len(self._unread) < head + size:
            return None

        body = bytes(self._unread[head : head + size])
        del self._unread[: head + size]
        return flags, body


def _connected(address: Union[str, int], seconds: float) -> socket.socket:
    if isinstance(address, int):
        made = socket.create_connection(("127.0.0.1", address), timeout=seconds)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    made = socket.socket(socket.AF_UNIX)
    made.settimeout(seconds)
    try:
        made.connect(address)
    except OSError:
        made.close()
        raise

    return made


def _framed(body: bytes, flags: int) -> bytes:
    if len(body) > _SHORT_BYTES:
        return bytes([flags | _LONG]) + struct.pack("!Q", len(body)) + body

    return bytes([flags, len(body)]) + body
