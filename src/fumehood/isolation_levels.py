"""The levels of isolation: their names, from the weakest to the strongest, and the floor that a caller sets.

Used by all host code and by callers. Values only: which level a sandbox has reached is computed by its runtime from
what was really applied; nothing here makes a sandbox or knows of one.
"""

from __future__ import annotations

from typing import Literal, get_args

from fumehood.errors import InvalidArgumentError

IsolationLevel = Literal["none", "landlock-only", "namespaces", "gvisor", "vm"]
# From the weakest to the strongest. No runtime makes the last two yet: they are names to ask for, and to be refused.
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = get_args(IsolationLevel)
MADE_LEVELS: tuple[IsolationLevel, ...] = ("none", "landlock-only", "namespaces")
# What a sandbox must reach unless its caller or the settings name another level.
DEFAULT_FLOOR: IsolationLevel = "namespaces"


def reaches(level: str, floor: str) -> bool:
    """Tells whether a level is the floor or stronger; one that is not in the list reaches none but `none`."""
    rank = ISOLATION_LEVELS.index(level) if level in ISOLATION_LEVELS else 0
    return rank >= ISOLATION_LEVELS.index(floor)


def check_isolation(field: str, value: object) -> None:
    """Raises InvalidArgumentError unless it is the name of a level."""
    if value not in ISOLATION_LEVELS:
        raise InvalidArgumentError(field=field, value=value, allowed=f"one of {', '.join(MADE_LEVELS)}")
