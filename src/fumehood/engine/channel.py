"""A channel: frames over a non-blocking socket, on the engine's loop.

Bytes from the guest are parsed by the wire's decoder only; the first protocol violation closes the channel. Frames are
decoded and handled one by one, and a turn of the loop may end between any two of them: however many frames a guest
sends, and however short they are, other sandboxes get their turn. Descriptors are only ever sent: one that a guest
passes is never received, because no call here asks the kernel for any. The module also makes the pipes and socket pairs
whose one end goes to a guest.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fumehood.engine.loop_share import TURN_SECONDS, LoopShare
from fumehood.runtimes.packets import close_all, copies
from fumehood_wire.frames import MAX_PAYLOAD_BYTES, Decoder, ProtocolError, encode

_RECEIVE_BYTES = 1 << 18

OnFrame = Callable[[dict[str, Any], bytes], None]
OnClose = Callable[[ProtocolError | None], None]


class Channel:
    """One end of a stream of frames.

    Args:
        sock: A connected, non-blocking stream socket, owned from now on.
        on_frame: Called with each header and payload; a `ProtocolError` that it raises closes the channel.
        on_close: Called once, with the violation that ended the channel, or None when it was closed by either side.
        max_payload_bytes: The largest payload.
        share: The share of the loop that is charged with what arrives; by default one of its own.
        on_caught_up: Called when all that has arrived was handled, after more had arrived than one turn could handle.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: OnFrame,
        on_close: OnClose,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        share: LoopShare | None = None,
        on_caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._sock = sock
        # By number: asyncio formats a socket object as text each time it looks up one that is not watched.
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_close = on_close
        self._decoder = Decoder(max_payload_bytes=max_payload_bytes)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._closed = False
        self._on_caught_up = on_caught_up
        self._is_behind = False
        self._share = share or LoopShare()
        self._share.add_reader(self._fd, self._take_turn)

    @property
    def closed(self) -> bool:
        """Whether the channel is closed in both directions."""
        return self._closed

    def send(self, header: dict[str, Any], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Sends a frame, or queues the part that the socket does not accept now; a closed channel drops it.

        Args:
            header: The message.
            payload: The bytes that follow it.
            fds: Descriptors that are sent with the first byte; the caller may close them when this has returned.

        Raises:
            OSError: The descriptors cannot be passed, or kept until the socket accepts them; nothing was sent.
        """
        if self._closed:
            return

        left = memoryview(encode(header, payload))

        if not self._unsent:
            # Usually the socket accepts everything, and nothing is queued.
            sent = self._send_some(left, fds)
            left = left[sent:]

            if not left or self._closed:
                return

            fds = () if sent else fds

        # Duplicated, since the socket may accept them much later: a number that was closed meanwhile and reused would
        # hand another file to the guest.
        self._unsent.append((left, copies(fds)))

        if len(self._unsent) == 1:
            self._flush()

    def receive(self, max_seconds: float = TURN_SECONDS) -> bool:
        """Handles the frames that have arrived; also called before a later event is handled, to keep the order.

        Args:
            max_seconds: After this time it returns, at the end of a frame.

        Returns:
            Whether all frames were handled; otherwise the rest follows in later turns of the loop, and then
            `on_caught_up` is called.
        """
        ends = time.monotonic() + max_seconds
        has_all = self._receive(lambda: time.monotonic() >= ends)

        # The remaining bytes are not in the socket any more, so the loop would not report them.
        if not has_all:
            self._share.call_again(self._fd)

        return has_all

    def _take_turn(self) -> bool:
        return not self._receive(self._share.is_turn_over)

    def _receive(self, is_over: Callable[[], bool]) -> bool:
        """Handles frames until there are no more or the turn is over; returns False when there may be more."""
        has_all = self._handle_frames(is_over)
        was_behind, self._is_behind = self._is_behind, not has_all

        if has_all and was_behind and self._on_caught_up is not None:
            self._on_caught_up()

        return has_all

    def _handle_frames(self, is_over: Callable[[], bool]) -> bool:
        may_hold_more = True
        try:
            while not self._closed:
                frame = self._decoder.next_frame()

                if frame is not None:
                    self._on_frame(*frame)
                elif not may_hold_more or (data := self._read()) is None:
                    return True
                else:
                    may_hold_more = len(data) == _RECEIVE_BYTES
                    self._decoder.add(data)

                if is_over():
                    return self._closed or not (may_hold_more or self._decoder.pending_bytes)
        except ProtocolError as error:
            self._end(error)

        return True

    def _read(self) -> bytes | None:
        """Returns the bytes in the socket, None if there are none; closes the channel at the end of the stream."""
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""

        if not data:
            self._end(None)
            return None

        return data

    def close(self) -> None:
        """Closes the channel; a second call does nothing."""
        self._end(None)

    def _send_some(self, data: memoryview, fds: Sequence[int]) -> int:
        """Returns how many bytes the socket has accepted; closes the channel if the peer is gone."""
        try:
            return socket.send_fds(self._sock, [data], list(fds)) if fds else self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # The descriptors cannot be passed now, but the peer is still there.
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
        self._share.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._on_close(error)


def open_pipe() -> tuple[int, int]:
    """Makes a pipe that a guest can reopen through /proc; returns its read end and its write end."""
    read_end, write_end = os.pipe()
    os.fchmod(write_end, 0o666)
    return read_end, write_end


# include/uapi/asm-generic/socket.h
_SO_PASSRIGHTS = 83


def open_pair() -> tuple[socket.socket, socket.socket]:
    """Makes two connected sockets: the host's end, non-blocking and refusing descriptors, and the guest's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    refuse_descriptors(near)
    return near, far


def refuse_descriptors(sock: socket.socket) -> None:
    """Makes the kernel refuse descriptors sent to this end, where it supports that."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return  # older than Linux 6.16: the sandbox's policy refuses descriptors whose closing takes long
