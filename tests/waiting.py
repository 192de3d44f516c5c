"""Waiting in tests: for what comes to pass in its own time, on machines that are busy with something else.

How long something takes is measured nowhere by one look: a machine that runs other tests may stand still for a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")

DEADLINE_SECONDS = 60.0
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.02


def until(
    condition: Callable[[], Any], what: str = "what was waited for", seconds: float = DEADLINE_SECONDS
) -> Any:
    """Ask again until it is so, and return what it said."""
    deadline = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE_SECONDS

    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not come to pass: {what}"
        # A condition is often a request to what is waited for: asked without a pause, it would be kept from its work.
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    return found


def within(seconds: float, act: Callable[[], Any]) -> Any:
    """Do something that takes no longer than some seconds, and return what it returned.

    It is done again when it took longer, since the machine may have been the reason; three times is no chance.
    """
    for _ in range(3):
        begun = time.monotonic()
        outcome = act()

        if time.monotonic() - begun < seconds:
            return outcome

    raise AssertionError(f"it took longer than {seconds:g} s, three times")


def in_time(play: Callable[[], _T], lasted: Callable[[_T], Iterable[float]], seconds: float) -> _T:
    """Play a scene that measures its steps itself, and return what it told.

    It is played again when a step took longer than it may, since the machine may have been the reason; three times is
    no chance.
    """
    for _ in range(3):
        told = play()

        if all(step < seconds for step in lasted(told)):
            return told

    raise AssertionError(f"a step took longer than {seconds:g} s, three times: {told}")


def at_some_pace(scene: Callable[[float], None], *seconds: float) -> None:
    """Play a scene in which something must be done before some real time is over.

    The first time is short. A scene that fails is played with the next one: what only came too late passes then,
    and what is wrong fails with each.
    """
    for pace in seconds[:-1]:
        with suppress(Exception):
            return scene(pace)

    return scene(seconds[-1])
