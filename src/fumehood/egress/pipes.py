"""The byte streams between which the proxy copies, and the reader that takes bounded pieces from them.

Nothing is read ahead: the proxy reads from one side only what the other side takes, so that no guest and no server
fills the host's memory.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod

PIECE_BYTES = 1 << 16


class PipeEndError(EOFError):
    """The stream ended, or broke, too early."""


class TooLongError(ValueError):
    """A part that should be short is too long."""


class Pipe(ABC):
    """One end of a connection."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Returns received bytes, at most one piece; b"" at the end, regular or not."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Sends bytes, and waits while the other side does not read them.

        Raises:
            PipeEndError: The other side has closed.
        """

    @abstractmethod
    async def end(self) -> None:
        """Ends the sending direction."""


class SocketPipe(Pipe):
    """A non-blocking socket; the creator of the pipe closes it.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        """Returns what the socket has received, at most one piece; b"" at the end, regular or not."""
        try:
            return await self._loop.sock_recv(self._sock, PIECE_BYTES)
        except OSError:
            return b""

    async def send(self, data: bytes) -> None:
        """Sends bytes, and waits while the other side does not read them."""
        try:
            await self._loop.sock_sendall(self._sock, data)
        except OSError:
            raise PipeEndError from None

    async def end(self) -> None:
        """Shuts down the sending direction of the socket."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side was faster

    def close(self) -> None:
        """Closes the socket; no task may be waiting for it."""
        self._sock.close()


class TlsPipe(Pipe):
    """TLS over another pipe, in either role.

    Args:
        under: The pipe below.
        context: Keys and rules.
        server_name: The expected name in the certificate; None: this is the server's side.
        received: Bytes already read from `under`.
    """

    def __init__(
        self, under: Pipe, context: ssl.SSLContext, server_name: str | None, received: bytes = b""
    ) -> None:
        self._under = under
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._incoming.write(received)
        self._sending = asyncio.Lock()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def shake_hands(self) -> None:
        """Performs the handshake.

        Raises:
            ssl.SSLError: The handshake fails, or the certificate is not trusted.
            PipeEndError: The other side has closed.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()

                if not await self._fill():
                    raise PipeEndError from None
            except ssl.SSLError:
                # The other side must receive the alert.
                await self._flush()
                raise
            else:
                await self._flush()
                return

    async def receive(self) -> bytes:
        """Returns decrypted bytes, at most one piece; b"" at the end, regular or not."""
        while True:
            try:
                return self._tls.read(PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()

                if not await self._fill():
                    return b""
            except ssl.SSLError:
                return b""

    async def send(self, data: bytes) -> None:
        """Encrypts and sends bytes, and waits while the other side does not read them."""
        try:
            self._tls.write(data)
        except ssl.SSLError:
            raise PipeEndError from None

        await self._flush()

    async def end(self) -> None:
        """Ends the TLS session and the sending direction of the pipe below."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for the other side's close_notify, which is not needed

        try:
            await self._flush()
        except PipeEndError:
            return

        await self._under.end()

    async def _fill(self) -> bool:
        data = await self._under.receive()
        self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        # Both directions may have something to send, and its order matters.
        async with self._sending:
            if data := self._outgoing.read():
                await self._under.send(data)


class PipeReader:
    """Bytes from a pipe, taken in pieces of bounded size.

    Args:
        pipe: The pipe.
        received: Bytes already read from it.
    """

    def __init__(self, pipe: Pipe, received: bytes = b"") -> None:
        self._pipe = pipe
        self._held = bytearray(received)

    @property
    def held(self) -> bytes:
        """The bytes that were read and not taken."""
        return bytes(self._held)

    async def more(self) -> bool:
        """Waits for more bytes; False at the end."""
        data = await self._pipe.receive()
        self._held += data
        return bool(data)

    async def take(self, count: int) -> bytes:
        """Takes exactly this many bytes.

        Raises:
            PipeEndError: The stream ends too early.
        """
        while len(self._held) < count:
            if not await self.more():
                raise PipeEndError

        return self._cut(count)

    async def take_through(self, mark: bytes, max_bytes: int) -> bytes:
        """Takes all bytes up to and with `mark`.

        Raises:
            PipeEndError: The stream ends too early.
            TooLongError: The bytes are more than `max_bytes`.
        """
        searched = 0

        while (at := self._held.find(mark, searched)) < 0:
            searched = max(0, len(self._held) - len(mark) + 1)

            if len(self._held) > max_bytes:
                raise TooLongError

            if not await self.more():
                raise PipeEndError

        if at + len(mark) > max_bytes:
            raise TooLongError

        return self._cut(at + len(mark))

    async def take_some(self, max_bytes: int) -> bytes:
        """Takes the available bytes, at most this many; b"" at the end."""
        if not self._held and not await self.more():
            return b""

        return self._cut(min(max_bytes, len(self._held)))

    def _cut(self, count: int) -> bytes:
        data = bytes(self._held[:count])
        del self._held[:count]
        return data
