"""Status: who a process is, and what it may do, as the kernel says.

Runs in the host process. A process that is looked at may have ended, and its number may be another's by now: what
was read belongs to the process that the caller holds by a pidfd only if that process still lives afterwards.
"""

from __future__ import annotations

_SECCOMP_FILTER = b"2"
_DEAD = b"Z"
_ID_FIELDS = (b"Uid", b"Gid")


def ids_of(pid: int) -> list[list[bytes]]:
    """Returns user and group on the host: the real and the effective id, and that for files.

    The saved ones may be in reserve, and are left out.
    """
    fields = _fields(pid)
    found = []

    for name in _ID_FIELDS:
        real, effective, _, files = fields.get(name, b"0 0 0 0").split()
        found.append([real, effective, files])

    return found


def parent_of(pid: int) -> int:
    """Returns who would take leave of it; 0 when it has ended."""
    return int(_fields(pid).get(b"PPid", b"0"))


def numbers_of(pid: int) -> list[int]:
    """Returns its numbers in all PID namespaces in which it is seen, its own the last; none when it is gone."""
    return [int(number) for number in _fields(pid).get(b"NSpid", b"").split()]


def groups_of(pid: int) -> bytes:
    """Returns its control groups, one of each hierarchy a line.

    Raises:
        OSError: It is gone.
    """
    with open(f"/proc/{pid}/cgroup", "rb") as file:
        return file.read()


def has_died(pid: int) -> bool:
    """Whether it has ended, and nobody has taken leave of it."""
    return _fields(pid).get(b"State", b"").split()[:1] == [_DEAD]


def is_confined(pid: int) -> bool:
    """Whether it has no capability in any set, can get none, and is under a system call filter."""
    fields = _fields(pid)
    capabilities = [int(value, 16) for name, value in fields.items() if name.startswith(b"Cap")]
    is_filtered = fields.get(b"Seccomp", b"").strip() == _SECCOMP_FILTER
    has_no_new = fields.get(b"NoNewPrivs", b"").strip() == b"1"
    return is_filtered and has_no_new and not any(capabilities)


def _fields(pid: int) -> dict[bytes, bytes]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    except OSError:
        return {}
