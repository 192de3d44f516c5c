"""The level is computed from what was applied: whatever is missing, it is said."""

from __future__ import annotations

import pytest

from fumehood.runtimes.base import isolation_of
from fumehood.runtimes.namespaces.isolation import describe_isolation
from fumehood.values.sandbox import ISOLATION_LEVELS, Layer, reaches
from fumehood_jail.namespaces import ALL_NAMESPACES, own_numbers
from fumehood_jail.users import IdPlan

GREETING = {
    "pid": 1,
    "landlock_abi": 7,
    "capabilities": 0,
    "no_new_privileges": True,
    "seccomp_mode": 2,
    "groups": 0,
    "namespaces": dict.fromkeys(ALL_NAMESPACES, 1),
}


def level_of(**changed: object) -> str:
    """The level of a sandbox whose init says this."""
    return describe_isolation({**GREETING, **changed}, plan(), None, "none can be written").level


def plan() -> IdPlan:
    """Ids as an ordinary user has them."""
    return IdPlan("single", [(0, 1000, 1)], [(0, 1000, 1)], 0, 1, [])


def test_the_levels_are_in_order():
    """Each reaches itself and all before it."""
    for place, level in enumerate(ISOLATION_LEVELS):
        reached = [floor for floor in ISOLATION_LEVELS if reaches(level, floor)]
        assert reached == list(ISOLATION_LEVELS[: place + 1])

    assert not reaches("something else", "landlock-only")


def test_with_every_wall_it_is_namespaces():
    """Landlock is a second wall there: an old kernel without it does not change the level."""
    assert level_of() == level_of(landlock_abi=0) == "namespaces"


@pytest.mark.parametrize(
    "changed",
    [
        {"pid": 2},
        {"capabilities": 1},
        {"no_new_privileges": False},
        {"seccomp_mode": 0},
        *({"namespaces": {**GREETING["namespaces"], name: own_numbers()[name]}} for name in ALL_NAMESPACES),
        {"namespaces": {}},
    ],
    ids=str,
)
def test_a_wall_that_is_missing_is_no_level(changed):
    """A namespace counts only when the kernel gives it another number than that of the host process."""
    assert level_of(**changed) == "none"


def test_a_weaker_means_counts_and_is_listed():
    """Degraded is not off: the level stands, and the layer says what took its place."""
    isolation = describe_isolation(GREETING, plan(), None, "none can be written")

    assert isolation.level == "namespaces"
    assert {"identity", "cgroup memory"} <= {layer.name for layer in isolation.missing}


def test_no_layers_are_no_level():
    """Nothing is assumed."""
    assert isolation_of([]).level == "none"
    assert isolation_of([Layer(name="seccomp", state="on")]).level == "none"
