"""A channel: frames over a non-blocking socket, on the engine's loop.

Runs in the host process. Bytes from the guest go through the wire's decoder and through nothing else; the
first breach of the protocol closes the channel. Descriptors are only ever sent: one that a guest tries to
pass is never received, because nothing here asks the kernel for any.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fumehood.descriptors import close_all, copies
from fumehood_wire.frames import MAX_PAYLOAD_BYTES, Decoder, ProtocolError, encode

_RECEIVE_BYTES = 1 << 18
# How much may be received in one turn of the loop before others get theirs.
_MAX_TURN_BYTES = 1 << 22

OnFrame = Callable[[dict[str, Any], bytes], None]
OnClose = Callable[[ProtocolError | None], None]


class Channel:
    """One end of a stream of frames.

    Args:
        sock: A connected, non-blocking stream socket, owned from now on.
        on_frame: Called with each header and payload; a `ProtocolError` that it raises closes the channel.
        on_close: Called once, with the breach that ended the channel, or None when it was closed by either side.
        max_payload_bytes: What a payload may hold.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: OnFrame,
        on_close: OnClose,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._sock = sock
        # By number: asyncio describes a socket object in words each time it looks for one that is not watched.
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_close = on_close
        self._decoder = Decoder(max_payload_bytes=max_payload_bytes)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._closed = False
        # What the loop is to do next, where it can be looked at.
        self._ready: deque[asyncio.Handle] | None = getattr(self._loop, "_ready", None)
        self._loop.add_reader(self._fd, self._receive_and_go_on)

    @property
    def closed(self) -> bool:
        """True when nothing more can be sent or received."""
        return self._closed

    def send(self, header: dict[str, Any], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Sends a frame, or queues what the socket does not take now; on a closed channel it is dropped.

        Args:
            header: The message.
            payload: What follows it.
            fds: Descriptors that travel with the first byte; the caller may close them when this has returned.

        Raises:
            OSError: The descriptors cannot be passed, or kept until the socket takes them; nothing was sent.
        """
        if self._closed:
            return

        left = memoryview(encode(header, payload))

        if not self._unsent:
            # Most often the socket takes all of it, and nothing is to be kept.
            sent = self._send_some(left, fds)
            left = left[sent:]

            if not left or self._closed:
                return

            fds = () if sent else fds

        # Copies, since it may be a while until the socket takes them: a number that was closed meanwhile and given
        # out again would be somebody else's file, in the hands of a guest.
        self._unsent.append((left, copies(fds)))

        if len(self._unsent) == 1:
            self._flush()

    def receive(self) -> None:
        """Takes in what has arrived; also called to be sure that nothing has, before something later is judged."""
        taken = 0

        while not self._closed and taken < _MAX_TURN_BYTES:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""

            if not data:
                self._end(None)
                return

            taken += len(data)
            try:
                for header, payload in self._decoder.feed(data):
                    self._on_frame(header, payload)
            except ProtocolError as error:
                self._end(error)
                return

            if len(data) < _RECEIVE_BYTES:
                return

    def _receive_and_go_on(self) -> None:
        """Does next what only waited for this: the loop would ask for other news first, and then do the same."""
        ready = self._ready
        was_last = not ready
        self.receive()

        if ready is not None and was_last and len(ready) == 1:
            handle = ready.popleft()

            if not handle.cancelled():
                handle._run()

    def close(self) -> None:
        """Closes the channel; closing twice is no error."""
        self._end(None)

    def _send_some(self, data: memoryview, fds: Sequence[int]) -> int:
        """Returns how much of it the socket has taken; where nobody is on the other side the channel ends."""
        try:
            return socket.send_fds(self._sock, [data], list(fds)) if fds else self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # What cannot be passed now was not sent, and the other side is still there.
            if fds and not isinstance(error, ConnectionError):
                raise

            self._end(None)
            return 0

    def _flush(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self._sock, [data], list(fds)) if fds else self._sock.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._flush)
                return
            except OSError:
                self._end(None)
                return

            close_all(fds)

            if sent < len(data):
                self._unsent[0] = (data[sent:], ())
            else:
                self._unsent.popleft()

        self._loop.remove_writer(self._fd)

    def _end(self, error: ProtocolError | None) -> None:
        if self._closed:
            return

        self._closed = True

        for _, fds in self._unsent:
            close_all(fds)

        self._unsent.clear()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._on_close(error)
