"""A stream of bytes to something inside a sandbox, as the port of sandboxes has it.

Used on both sides of the port. It carries what was written and knows nothing of what it means. Whoever opened
a stream closes it; a sandbox that ends closes all of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType


class ByteStream(ABC):
    """A connection in both directions, each of which has an end of its own.

    One task may read while another writes; two must not do the same at once. With `async with`, it is closed at
    the end.
    """

    @abstractmethod
    async def read(self) -> bytes:
        """Return what has arrived, at most 64 KiB; b"" at the end, and from then on.

        Raises:
            SandboxClosedError: The sandbox ended before the other side did.
            HostUnavailableError: The way to the sandbox's server broke off.
        """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the other side does not take them.

        Raises:
            BrokenPipeError: The other side takes no more, or `end` or `close` came before.
            SandboxClosedError: The sandbox has ended.
        """

    @abstractmethod
    async def end(self) -> None:
        """Send no more: the other side reads its end. What it still sends can be read; ending twice is no error."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection in both directions; closing twice is no error."""

    async def __aenter__(self) -> ByteStream:
        """Hand over the stream."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.close()
