"""How long nobody has used a sandbox: a call that is under way is use, however long it is silent.

It counts by the sandbox's own clock, which a pause stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fumehood.engine.clock import SandboxClock


class Idleness:
    """When one sandbox was last used.

    Args:
        clock: The sandbox's.
    """

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock
        self._last_used = clock.time()
        self._under_way = 0

    @property
    def seconds(self) -> float:
        """How long nobody has used it; none while somebody does."""
        return 0.0 if self._under_way else self._clock.time() - self._last_used

    def touch(self) -> None:
        """Somebody uses it, or did up to now."""
        self._last_used = self._clock.time()

    @contextmanager
    def during_call(self) -> Iterator[None]:
        """Somebody uses it as long as the block runs."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()
