"""The clients of a kernel, each with a bounded queue of messages to send.

A client that does not read its messages is disconnected, and never affects the kernel. A client that reconnects under
the same session gets the messages that it has missed, if they are still kept.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Collection

from fumehood.dialects.jupyter.messages import JupyterMessage, encode_default, encode_v1
from fumehood.off_loop import off_loop
from fumehood.port.backend import Backend

_MAX_QUEUED_BYTES = 48 << 20
_MAX_QUEUED_MESSAGES = 20_000
# For a client that has disconnected and may reconnect.
_MAX_KEPT_BYTES = 4 << 20

GONE = 1000
TOO_SLOW = 1013
REPLACED = 1001


class Outgoing:
    """A message on its way to clients, written once for each framing.

    Args:
        message: The message.
        in_pieces: Whether it is written in many short calls, for a thread beside the loop.
    """

    def __init__(self, message: JupyterMessage, *, in_pieces: bool = False) -> None:
        self._message = message
        self._in_pieces = in_pieces
        self._frames: dict[bool, str | bytes] = {}

    def frame(self, *, v1: bool) -> str | bytes:
        """Returns the message in the v1 framing or the default one."""
        if v1 not in self._frames:
            encode = encode_v1 if v1 else encode_default
            self._frames[v1] = encode(self._message, in_pieces=self._in_pieces)

        return self._frames[v1]

    def write(self, framings: Collection[bool]) -> None:
        """Writes the message in each of these framings; true stands for v1."""
        for v1 in framings:
            self.frame(v1=v1)


class Client:
    """One WebSocket on a kernel.

    Args:
        session: The session under which it may reconnect; empty if it cannot.
        backend: The backend as its caller may see it.
        speaks_v1: Whether it has chosen the v1 framing.
    """

    def __init__(self, session: str, backend: Backend, *, speaks_v1: bool = False) -> None:
        self.session = session or uuid.uuid4().hex
        self.backend = backend
        self.may_return = bool(session)
        self.close_code: int | None = None
        self.speaks_v1 = speaks_v1
        # Frames are queued encoded: the values of messages take thirty times as much memory.
        self._queue: deque[str | bytes] = deque()
        self._queued_bytes = 0
        self._max_bytes = _MAX_QUEUED_BYTES
        self._changed = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """True when nothing more will be queued for it."""
        return self.close_code is not None

    def deliver(self, outgoing: Outgoing) -> None:
        """Queues a message; a client that is too far behind is closed instead."""
        if not self.is_closing:
            # Checked first, so that no message is encoded for a client that will not get it.
            self._put(outgoing.frame(v1=self.speaks_v1))

    def _put(self, frame: str | bytes) -> None:
        if self.is_closing:
            return

        self._queue.append(frame)
        self._queued_bytes += len(frame)

        if self._queued_bytes > self._max_bytes or len(self._queue) > _MAX_QUEUED_MESSAGES:
            self._forget()
            self.close(TOO_SLOW)

        self._changed.set()

    async def next_frame(self) -> str | bytes | None:
        """Returns the next frame to send, or None when the connection is to be closed."""
        while not self._queue:
            if self.is_closing:
                return None

            self._changed.clear()
            await self._changed.wait()

        frame = self._queue.popleft()
        self._queued_bytes -= len(frame)
        return frame

    def close(self, code: int) -> None:
        """Closes the connection when all queued frames have been sent."""
        if self.close_code is None:
            self.close_code = code

        self._changed.set()

    def leave(self) -> None:
        """Marks the client as disconnected: up to `_MAX_KEPT_BYTES` of frames stay queued; beyond that, none."""
        self._max_bytes = _MAX_KEPT_BYTES

        if self._queued_bytes > self._max_bytes:
            self._forget()
            self.close(GONE)

    def take_over(self, earlier: Client) -> None:
        """Takes over the frames that an earlier connection of the same session and framing did not send."""
        for frame in earlier._queue if earlier.speaks_v1 == self.speaks_v1 else ():
            self._put(frame)

        earlier._forget()
        earlier.close(REPLACED)

    def _forget(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0


class Audience:
    """The clients of one kernel, and the last one that has disconnected."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._left: Client | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._clients)

    def join(self, client: Client) -> None:
        """Adds a client; another connection of its session is replaced."""
        for earlier in [*self._clients, self._left]:
            if earlier is not None and earlier.session == client.session:
                self._remove(earlier)
                client.take_over(earlier)

        self._clients.append(client)

        if self._is_closed:
            client.close(GONE)

    def leave(self, client: Client) -> None:
        """Removes a client whose connection has ended."""
        if client not in self._clients:
            return

        self._remove(client)

        if client.may_return and not client.is_closing:
            client.leave()
            self._left = client

    def broadcast(self, message: JupyterMessage) -> None:
        """Sends a message to all clients."""
        self._deliver(Outgoing(message))

    async def broadcast_large(self, message: JupyterMessage) -> None:
        """Sends a message to all clients, written in the thread for answers."""
        outgoing = Outgoing(message, in_pieces=True)
        framings = {client.speaks_v1 for client in self._everybody() if not client.is_closing}
        await off_loop("answers", outgoing.write, framings)
        self._deliver(outgoing)

    def _deliver(self, outgoing: Outgoing) -> None:
        for client in self._everybody():
            client.deliver(outgoing)

    def reply(self, session: str, message: JupyterMessage) -> None:
        """Sends a message to the client of that session, if there is one."""
        for client in self._everybody():
            if client.session == session:
                client.deliver(Outgoing(message))

    def close(self) -> None:
        """Closes all clients, when the kernel has ended."""
        self._is_closed = True

        for client in self._everybody():
            client.close(GONE)

        self._left = None

    def _everybody(self) -> list[Client]:
        return [*self._clients, *([self._left] if self._left is not None else [])]

    def _remove(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)

        if self._left is client:
            self._left = None
