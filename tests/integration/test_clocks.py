"""X12: clocks that jump. What has a time limit counts by the machine's steady clock, whoever sets the time of day.

The host processes are children (`clock_scenes.py`).
"""

from __future__ import annotations

from .launching import run_scene


def test_x12_the_time_of_day_jumps() -> None:
    """Nothing ends early, and nothing goes on too long: executions, commands, pauses, sandboxes and their idleness."""
    right = {
        "limit": "time_limit",
        "limit in time": True,
        "command": "timed out",
        "lived at once": True,
        "kept": "1",
        "its command runs": True,
        "running": True,
        "started": True,
    }
    assert run_scene("clock_scenes.time_of_day_jumps", 1.0, -1.0) == [right, right]


def test_x12_the_host_stands_still_for_a_while() -> None:
    """What has happened inside meanwhile is told afterwards, and no sandbox whose time is not over has ended."""
    assert run_scene("clock_scenes.host_stands_still", 1.5) == {
        "text": "42",
        "wall": True,
        "other": "2",
        "running": [True, True],
    }
