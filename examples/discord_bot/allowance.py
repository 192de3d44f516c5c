"""How much one user may ask for: so many runs a minute, and one at a time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TooMuch(Exception):  # noqa: N818 - it is what the user is told
    """The user has to wait; the message says for what."""


class Allowance:
    """Counts the runs of each user.

    Args:
        runs_per_minute: How many may begin within a minute.
        clock: Tells the time in seconds.
    """

    def __init__(self, runs_per_minute: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs_per_minute = runs_per_minute
        self._clock = clock
        self._begun: dict[int, deque[float]] = {}
        self._running: set[int] = set()

    @contextmanager
    def spend(self, user_id: int) -> Iterator[None]:
        """Count a run of a user while it lasts.

        Raises:
            TooMuch: It may not begin now.
        """
        if user_id in self._running:
            raise TooMuch("Your last request is still running.")

        now = self._clock()
        self._forget_before(now - 60)
        begun = self._begun.setdefault(user_id, deque())

        if len(begun) >= self._runs_per_minute:
            seconds = math.ceil(begun[0] + 60 - now)
            raise TooMuch(f"That is {self._runs_per_minute} in a minute; try again in {seconds} s.")

        begun.append(now)
        self._running.add(user_id)

        try:
            yield
        finally:
            self._running.discard(user_id)

    def _forget_before(self, moment: float) -> None:
        for user_id, begun in [*self._begun.items()]:
            while begun and begun[0] <= moment:
                begun.popleft()

            if not begun:
                del self._begun[user_id]
