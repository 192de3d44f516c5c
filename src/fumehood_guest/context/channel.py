"""The channel: frames between a context and the host, over the socket on fd 3.

Runs in a context; any of its threads may send. A frame is sent whole or not at all: signals are blocked meanwhile, so
that no handler of the user can raise between its first and its last byte. When the socket is closed, the process has no
purpose left, and exits. It must never interpret a message.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import json
import os
import select
import socket
import threading
import time
from array import array
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from fumehood_guest.context.signals import ALL_SIGNALS
from fumehood_wire.frames import Decoder, encode

CHANNEL_FD = 3
_RECEIVE_BYTES = 1 << 18
# One descriptor comes with the request for a checkpoint, and none with any other.
_FD_ROOM = socket.CMSG_SPACE(array("i").itemsize)

Header = Dict[str, Any]


class Receipt:
    """Says whether a frame has gone: what a handler of the user raises leaves its sender without an answer."""

    __slots__ = ("is_sent",)

    def __init__(self) -> None:
        self.is_sent = False


class FrameSocket:
    """A connected stream socket for frames. It keeps references to all it needs, since user code may damage modules."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_all = sock.sendall
        self._receive_message = sock.recvmsg
        self._fds: List[int] = []
        self._set_mask = _signal.pthread_sigmask
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._inbox: Deque[Tuple[Header, bytes]] = deque()
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._exit = os._exit
        self.clock = time.monotonic

    def fileno(self) -> int:
        """The descriptor, for a poller."""
        return self._sock.fileno()

    def send(
        self,
        header: Header,
        payload: bytes = b"",
        *,
        is_quiet: bool = False,
        receipt: Optional[Receipt] = None,
    ) -> None:
        """Sends one frame; blocks while the host is slow. Exits the process when the host is gone.

        Args:
            header: The message.
            payload: The bytes that follow it.
            is_quiet: The caller blocks signals already, as between two cells.
            receipt: Notes that the frame has gone, also where a handler raises meanwhile because another thread has
                received the signal.
        """
        frame = encode(header, payload)
        receipt = receipt or Receipt()

        with self._lock:
            if is_quiet:
                self._send_whole(frame, receipt)
                return

            # Read first: a handler that raises inside the blocking call would lose the old mask.
            mask = self._set_mask(_signal.SIG_BLOCK, ())
            try:
                self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
                self._send_whole(frame, receipt)
            finally:
                self._set_mask(_signal.SIG_SETMASK, mask)

    def _send_whole(self, frame: bytes, receipt: Receipt) -> None:
        try:
            # Noted first: handlers run at the end of a call, so that here they raise when the frame has gone.
            receipt.is_sent = True
            self._send_all(frame)
        except OSError:
            self._exit(0)

    def is_readable(self) -> bool:
        """Whether the host has sent something that has not been received."""
        return bool(self._inbox) or bool(self._poller.poll(0))

    def receive(self) -> Optional[Tuple[Header, bytes]]:
        """Returns the next frame if it is complete, else None. Exits the process at the end of the stream.

        Blocks unless the channel is readable. The caller blocks signals: a handler could lose data that was read.
        """
        if not self._inbox:
            try:
                data, ancillary, _, _ = self._receive_message(
                    _RECEIVE_BYTES, _FD_ROOM, socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                data, ancillary = b"", []

            for _, _, content in ancillary:
                self._fds.extend(array("i", content))

            if not data:
                self._exit(0)

            self._inbox.extend(self._decoder.feed(data))

        return self._inbox.popleft() if self._inbox else None

    def take_fd(self) -> int:
        """Returns the next descriptor that the host has sent with a frame."""
        return self._fds.pop(0)

    def renew(self) -> None:
        """Resets the state after the descriptor's socket was replaced by a new one."""
        self._lock = threading.RLock()
        self._decoder = Decoder()
        self._inbox.clear()
        self._fds.clear()

    def abandon(self) -> None:
        """Closes the socket in a process that user code has forked: the channel belongs to its parent."""
        self._lock = threading.RLock()
        try:
            os.close(self._sock.detach())
        except OSError:
            pass


def encode_lines(lines: list[str]) -> bytes:
    """Returns a list of texts as JSON, the payload of an `error`."""
    # What has no encoding is escaped, in Python as in JSON.
    return _to_json(lines).encode("utf-8", "backslashreplace")


_to_json = json.JSONEncoder(ensure_ascii=False).encode
