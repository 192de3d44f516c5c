"""How long a sandbox has been unused: a call under way is use, however long it is silent.

It uses the sandbox's own clock, which a pause stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fumehood.engine.clock import SandboxClock


class Idleness:
    """When one sandbox was last used.

    Args:
        clock: The sandbox's clock.
    """

    def __init__(self, clock: SandboxClock) -> None:
        self._clock = clock
        self._last_used = clock.time()
        self._under_way = 0

    @property
    def seconds(self) -> float:
        """How long it has been unused; 0 during a call."""
        return 0.0 if self._under_way else self._clock.time() - self._last_used

    def touch(self) -> None:
        """Records a use."""
        self._last_used = self._clock.time()

    @contextmanager
    def during_call(self) -> Iterator[None]:
        """Counts as use while the block runs."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()
