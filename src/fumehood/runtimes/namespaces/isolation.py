"""Computes the isolation of a guest from what the kernel reports as applied.

A layer is `on` only when the greeting of that very sandbox, or the host's own cgroup, shows it; nothing is taken from
configuration. Also reads ids, parents and capabilities of processes from /proc.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fumehood.runtimes.base import isolation_of
from fumehood.runtimes.linux.control_groups import NO_DISK_BOUND, disk_reads
from fumehood.values.sandbox import Isolation, Layer, LayerState
from fumehood_jail import cgroups, users
from fumehood_jail.namespaces import ALL_NAMESPACES, own_numbers

_SECCOMP_FILTER = 2


def describe_isolation(
    greeting: dict[str, Any], ids: users.IdPlan, driver: cgroups.CgroupDriver | None, cgroup_reason: str
) -> Isolation:
    """Returns level and layers of one sandbox."""
    own = _hosts_numbers()
    shared = [name for name in ALL_NAMESPACES if greeting["namespaces"].get(name) in (None, own.get(name))]
    walls = (
        _namespaces(greeting["pid"], shared),
        _identity(ids),
        _layer(
            "filesystem root",
            "mnt" not in shared,
            "pivot_root into a read-only root",
            "the host's own mounts",
        ),
        _own_inodes(greeting.get("shared_places", ""), has_devices=greeting.get("own_devices", False)),
        _layer("capabilities", greeting["capabilities"] == 0, "all five sets are empty", "some are left"),
        _layer("no new privileges", greeting["no_new_privileges"], "", "the flag is not set"),
        _layer("seccomp", greeting["seccomp_mode"] == _SECCOMP_FILTER, "allowlist", "no filter is loaded"),
        _landlock(greeting["landlock_abi"], init_watches=driver is None),
        _layer(
            "network",
            "net" not in shared,
            "a namespace of its own with a loopback and no route",
            "it shares the host's network",
        ),
    )
    return isolation_of((*walls, *_resources(driver, cgroup_reason)))


@cache
def _hosts_numbers() -> dict[str, int]:
    return own_numbers()


def _namespaces(pid: int, shared: list[str]) -> Layer:
    if shared:
        return Layer(name="namespaces", state="off", why=f"shares those of the host: {', '.join(shared)}")

    return _layer("namespaces", pid == 1, ", ".join(ALL_NAMESPACES), "init is not PID 1")


def _identity(ids: users.IdPlan) -> Layer:
    if ids.count > 1:
        return Layer(name="identity", state="on", why="a host uid of its own")

    return Layer(name="identity", state="degraded", why="shares the uid of the user who runs the host process; "
                 "install newuidmap and list a range in /etc/subuid, or run as root")  # fmt: skip


def _own_inodes(shared: str, *, has_devices: bool) -> Layer:
    if not shared and not has_devices:
        why = "locks and watches on files of the system stay inside; those on devices do not: to make nodes of their "
        return Layer(name="own inodes", state="on", why=f"{why}own takes root")

    if not shared:
        return Layer(
            name="own inodes", state="on", why="locks and watches on files of the system stay inside"
        )

    return Layer(
        name="own inodes",
        state="degraded",
        why=f"locks and watches on files reach the host and other sandboxes, for want of an overlay of {shared}; it "
        "takes Linux 5.11 with overlayfs, and no other mounts within these folders",
    )


def _landlock(abi: int, init_watches: bool) -> Layer:
    detail = f"ABI {abi}"

    if init_watches:
        detail += "; one thread of init stands outside, to read how much memory contexts hold"

    return _layer("landlock", abi > 0, detail, "the kernel has none")


def _resources(driver: cgroups.CgroupDriver | None, reason: str) -> tuple[Layer, ...]:
    if driver is None:
        # The reason is given in one layer only, since every description of a sandbox contains it.
        also = ", as 'cgroup memory' tells"
        return (
            Layer(name="cgroup memory", state="degraded", why=f"a watcher inside instead: {reason}"),
            Layer(name="cgroup pids", state="degraded", why=f"a resource limit instead{also}"),
            Layer(name="cgroup cpu", state="off", why=f"nothing holds cpu_cores{also}"),
            Layer(name="cgroup io", state="off", why=f"{NO_DISK_BOUND}{also}"),
            Layer(name="cgroup freezer", state="degraded", why=f"signals stop what is paused{also}"),
        )

    own = tuple(
        Layer(name=f"cgroup {name}", state="on", why=f"version {driver.version}")
        if name in driver.controllers
        else Layer(name=f"cgroup {name}", state="degraded", why="its controller cannot be written")
        for name in ("memory", "pids", "cpu", "freezer")
    )
    return (*own, disk_reads(driver))


def _layer(name: str, is_on: bool, detail: str, why_not: str) -> Layer:
    state: LayerState = "on" if is_on else "off"
    return Layer(name=name, state=state, why=detail if is_on else why_not)


_FILTER_STATUS = b"2"
_DEAD = b"Z"
_ID_FIELDS = (b"Uid", b"Gid")


def ids_of(pid: int) -> list[list[bytes]]:
    """Returns the real, effective and file-system user and group ids of a process on the host.

    Saved ids are left out, because contexts keep one in reserve.
    """
    fields = _fields(pid)
    found = []

    for name in _ID_FIELDS:
        real, effective, _, files = fields.get(name, b"0 0 0 0").split()
        found.append([real, effective, files])

    return found


def parent_of(pid: int) -> int:
    """Returns the pid of a process's parent, which has to reap it; 0 if the process has ended."""
    return int(_fields(pid).get(b"PPid", b"0"))


def numbers_of(pid: int) -> list[int]:
    """Returns a process's pids in all PID namespaces in which it is visible, its own last; empty if it has ended."""
    return [int(number) for number in _fields(pid).get(b"NSpid", b"").split()]


def groups_of(pid: int) -> bytes:
    """Returns a process's control groups, one hierarchy per line.

    Raises:
        OSError: The process has ended.
    """
    with open(f"/proc/{pid}/cgroup", "rb") as file:
        return file.read()


def has_died(pid: int) -> bool:
    """Whether a process has ended: it is a zombie, not reaped yet."""
    return _fields(pid).get(b"State", b"").split()[:1] == [_DEAD]


def is_confined(pid: int) -> bool:
    """Whether a process has no capability in any set, can gain none, and is under a system call filter."""
    fields = _fields(pid)
    capabilities = [int(value, 16) for name, value in fields.items() if name.startswith(b"Cap")]
    is_filtered = fields.get(b"Seccomp", b"").strip() == _FILTER_STATUS
    has_no_new = fields.get(b"NoNewPrivs", b"").strip() == b"1"
    return is_filtered and has_no_new and not any(capabilities)


def _fields(pid: int) -> dict[bytes, bytes]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except OSError:
        return {}
