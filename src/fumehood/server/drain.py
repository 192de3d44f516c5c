"""How a server ends: nothing new is begun, what is under way gets some time, and what is left then is told.

It counts and waits; whoever asks it refuses, answers or closes by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What began earlier may go on for its sake: the answer to a question, an interrupt, the end of a sandbox.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_FOR_WHAT_RUNS = (
    "/input",
    "/interrupt",
    "/signal",
    "/stdin",
    "/stdin/close",
    # The same in dialects: E2B's commands, and the results that code of LibreChat waits for, whose handler begins
    # nothing new either.
    "/SendInput",
    "/SendSignal",
    "/CloseStdin",
    "/exec/programmatic",
    "/exec/programmatic/cancel",
)
_LOOK_SECONDS = 0.02
RETRY_SECONDS = 1.0


class Drain:
    """Whether a server takes work, and how much of it is under way."""

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
        """From now on nothing new is begun."""
        self.begun = True

    def end(self) -> None:
        """The time of what is under way is over."""
        self.begun = True
        self.over.set()

    def refuses(self, kind: str, method: str, path: str) -> bool:
        """Tells whether a request of this kind (`http`, `websocket`), method and path would begin something."""
        if not self.begun:
            return False

        return kind == "websocket" or not (method in _SAFE_METHODS or path.endswith(_FOR_WHAT_RUNS))

    async def finish(self, seconds: float, is_busy: Callable[[], bool]) -> bool:
        """Waits until nothing is under way, and tells whether all of it ended by itself in this time.

        Args:
            seconds: How long at most.
            is_busy: Whether there is work that no request stands for.
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
