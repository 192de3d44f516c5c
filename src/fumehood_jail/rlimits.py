"""Resource limits: the second line behind cgroups, and the first where no cgroup is writable.

Runs in the init of a sandbox before it starts a context. Hard and soft limit are the same, so guest code
cannot move either; a limit is never raised above the hard limit that was inherited.
"""

from __future__ import annotations

import resource

from fumehood_jail.errors import JailError

# Names as in setrlimit(2), in lower case and without the prefix.
_RESOURCES = {
    name: getattr(resource, f"RLIMIT_{name.upper()}")
    for name in (
        "as",
        "core",
        "cpu",
        "data",
        "fsize",
        "memlock",
        "msgqueue",
        "nice",
        "nofile",
        "nproc",
        "rtprio",
        "rttime",
        "sigpending",
        "stack",
    )
}


def apply(table: dict[str, int]) -> dict[str, int]:
    """Sets soft and hard limits of this process.

    Args:
        table: Values by name (`{"core": 0, "nofile": 1024}`), in the units of setrlimit(2).

    Returns:
        The limits now in force, which are lower than asked where the inherited hard limit was lower.
    """
    return {name: _apply_one(name, value) for name, value in table.items()}


def _apply_one(name: str, value: int) -> int:
    if name not in _RESOURCES:
        raise ValueError(f"no resource limit is called {name!r}")

    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"the limit {name!r} must be a whole number from 0 up, not {value!r}")

    _, hard = resource.getrlimit(_RESOURCES[name])
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)

    try:
        resource.setrlimit(_RESOURCES[name], (value, value))
    except (OSError, ValueError) as error:
        raise JailError(
            "rlimits", getattr(error, "errno", None) or 0, f"cannot set {name!r} to {value}"
        ) from error

    return value
