"""Graceful shutdown: refuses new work, gives work under way some time, then reports unfinished work.

It counts and waits; its callers refuse, answer or close by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Requests that finish work begun earlier: the answer to a question, an interrupt, the end of a sandbox.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_FOR_WHAT_RUNS = (
    "/input",
    "/interrupt",
    "/signal",
    "/stdin",
    "/stdin/close",
    # The same in dialects: E2B's commands, and tool results for LibreChat code, whose handler begins nothing new
    # either.
    "/SendInput",
    "/SendSignal",
    "/CloseStdin",
    "/exec/programmatic",
    "/exec/programmatic/cancel",
)
_LOOK_SECONDS = 0.02
RETRY_SECONDS = 1.0


class Drain:
    """Whether a server takes new work, and how many requests are under way."""

    def __init__(self) -> None:
        self.begun = False
        self.under_way = 0
        self.over = asyncio.Event()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request as under way while the block runs."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def begin(self) -> None:
        """Refuses new work from now on."""
        self.begun = True

    def end(self) -> None:
        """Ends the grace time of the work under way."""
        self.begun = True
        self.over.set()

    def refuses(self, kind: str, method: str, path: str) -> bool:
        """Returns whether a request of this kind (`http`, `websocket`), method and path would begin something."""
        if not self.begun:
            return False

        return kind == "websocket" or not (method in _SAFE_METHODS or path.endswith(_FOR_WHAT_RUNS))

    async def wait(self, seconds: float, is_busy: Callable[[], bool]) -> bool:
        """Waits until no work is under way, and returns whether all of it ended by itself in this time.

        Args:
            seconds: The longest time to wait.
            is_busy: Returns whether work is under way that has no request.
        """
        try:
            async with asyncio.timeout(seconds):
                while (self.under_way or is_busy()) and not self.over.is_set():
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            self.end()

        is_done = not self.over.is_set()
        self.end()
        return is_done
