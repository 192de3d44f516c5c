"""Computes the isolation of a guest without namespaces, and reports which layers are missing.

A layer is `on` only when the greeting of that very sandbox, or the host's own cgroup, shows it; init has verified its
restrictions before it sends the greeting, and sends none when they do not hold.
"""

from __future__ import annotations

from typing import Any

from fumehood.runtimes.base import isolation_of
from fumehood.runtimes.linux.control_groups import NO_DISK_BOUND, disk_reads
from fumehood.values.sandbox import Isolation, Layer, LayerState
from fumehood_jail import cgroups
from fumehood_jail.landlock_fence import NEEDED_ABI

_SECCOMP_FILTER = 2


def describe_fence(
    greeting: dict[str, Any], *, has_own_user: bool, driver: cgroups.CgroupDriver | None, cgroup_reason: str
) -> Isolation:
    """Returns level and layers of one sandbox."""
    abi = greeting["landlock_abi"]
    is_fenced = abi >= NEEDED_ABI
    return isolation_of(
        (
            Layer(
                name="namespaces",
                state="off",
                why="none: the kernel tells sandbox and host apart by rules alone, not by what they can name; "
                "sizes, times and names of files of the host can be found out",
            ),
            _identity(has_own_user),
            _layer("landlock files", is_fenced, f"ABI {abi}; a look outside was refused", "ABI too old"),
            _layer("landlock signals", is_fenced, "a signal to the host was refused", "ABI too old"),
            _layer("capabilities", greeting["capabilities"] == 0, "none is held", "some are left"),
            _layer("no new privileges", greeting["no_new_privileges"], "", "the flag is not set"),
            _layer(
                "seccomp", greeting["seccomp_mode"] == _SECCOMP_FILTER, "allowlist", "no filter is loaded"
            ),
            Layer(
                name="network",
                state="degraded",
                why="the host's own: no socket can be made but pairs, in place of a namespace without a route",
            ),
            Layer(
                name="own inodes",
                state="off",
                why="locks on files that code may read reach the host and other sandboxes",
            ),
            Layer(
                name="disk",
                state="off",
                why="nothing holds disk_bytes and inodes but for the size of one file",
            ),
            *_resources(driver, cgroup_reason),
        )
    )


def _identity(has_own_user: bool) -> Layer:
    if has_own_user:
        return Layer(
            name="identity", state="degraded", why="a host uid that all sandboxes of the template share"
        )

    return Layer(
        name="identity", state="degraded", why="shares the uid of the user who runs the host process"
    )


def _resources(driver: cgroups.CgroupDriver | None, reason: str) -> tuple[Layer, ...]:
    if driver is None:
        # The reason is given in one layer only, since every description of a sandbox contains it.
        also = ", as 'cgroup memory' tells"
        return (
            Layer(name="cgroup memory", state="degraded", why=f"a watcher inside instead: {reason}"),
            Layer(
                name="cgroup pids",
                state="degraded",
                why=f"a resource limit for the whole user instead{also}",
            ),
            Layer(name="cgroup cpu", state="off", why=f"nothing holds cpu_cores{also}"),
            Layer(name="cgroup io", state="off", why=f"{NO_DISK_BOUND}{also}"),
        )

    own = tuple(
        Layer(name=f"cgroup {name}", state="on", why=f"version {driver.version}")
        if name in driver.controllers
        else Layer(name=f"cgroup {name}", state="degraded", why="its controller cannot be written")
        for name in ("memory", "pids", "cpu")
    )
    return (*own, disk_reads(driver))


def _layer(name: str, is_on: bool, detail: str, why_not: str) -> Layer:
    state: LayerState = "on" if is_on else "off"
    return Layer(name=name, state=state, why=detail if is_on else why_not)
