"""How long nobody has used a sandbox, by a clock that a test sets."""

from __future__ import annotations

import pytest

from fumehood.engine.clock import Idleness, SandboxClock


class Clock(SandboxClock):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def time(self) -> float:
        return self.now


def test_it_counts_from_the_last_use():
    clock = Clock()
    idleness = Idleness(clock)
    clock.now += 5
    assert idleness.seconds == 5
    idleness.touch()
    assert idleness.seconds == 0
    clock.now += 3
    assert idleness.seconds == 3


def test_a_call_that_is_under_way_is_use_to_its_end():
    """One within another too, and one that fails."""
    clock = Clock()
    idleness = Idleness(clock)

    with idleness.during_call():
        clock.now += 50

        with pytest.raises(ValueError, match="no"), idleness.during_call():
            raise ValueError("no")

        clock.now += 50
        assert idleness.seconds == 0

    assert idleness.seconds == 0
    clock.now += 2
    assert idleness.seconds == 2
