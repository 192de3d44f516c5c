"""Capabilities: the five sets of a process, and the bits that keep them empty.

Runs in jail init and zygote (which keep the few that are needed to make sandboxes) and in the init of a sandbox
(which keeps none). The order matters: the bounding set can only be emptied while CAP_SETPCAP is held, so `seal` comes
before a change of the user id and `drop_all` after it.
"""

from __future__ import annotations

from fumehood_jail import syscalls
from fumehood_jail.errors import JailError

# include/uapi/linux/capability.h, in the order of their numbers.
_NAMES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
)
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}
_HIGHEST = 63


def _known() -> range:
    """Probes capability numbers until the kernel rejects one."""
    for number in range(_HIGHEST + 1):
        try:
            syscalls.prctl(syscalls.PR_CAPBSET_READ, number)
        except OSError:
            return range(number)

    return range(_HIGHEST + 1)


# The capabilities that this kernel knows, by number.
KNOWN = _known()

# include/uapi/linux/securebits.h: NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock,
# and the lock of KEEP_CAPS alone, which stays off.
SECUREBITS = 0b11101111


def drop_all() -> None:
    """Empties the effective, permitted, inheritable, bounding and ambient sets and locks the secure bits.

    Before: either `seal` has run, or CAP_SETPCAP is held. After: no capability can be regained, not even by executing
    a file that belongs to root.
    """
    seal()
    _set(0)


def seal() -> None:
    """Empties the bounding and ambient sets and locks the secure bits; keeps the capabilities held now.

    Before: CAP_SETPCAP is held, or this process is sealed already. After: a change of the user id no longer
    changes the effective set, so `drop_all` can follow it.
    """
    try:
        if syscalls.prctl(syscalls.PR_GET_SECUREBITS) != SECUREBITS:
            syscalls.prctl(syscalls.PR_SET_SECUREBITS, SECUREBITS)

        _limit_bounding_set(frozenset())
        syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        raise JailError(
            "capabilities",
            error.errno or 0,
            f"cannot seal the capability sets ({error})",
            "This takes CAP_SETPCAP in the user namespace, which a change of the user id gives up.",
        ) from error


def keep_only(names: frozenset[str]) -> None:
    """Reduces the effective, permitted and bounding sets to `names` and empties the other two.

    Before: CAP_SETPCAP is held. After: a program executed as the namespace's root gets at most these capabilities.

    Args:
        names: Names as in capabilities(7), such as `"CAP_SETUID"`.
    """
    kept = frozenset(_NUMBERS[name] for name in names)
    try:
        _limit_bounding_set(kept)
        syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        raise JailError(
            "capabilities", error.errno or 0, f"cannot limit the bounding set ({error})"
        ) from error

    _set(sum(1 << number for number in kept))


def _limit_bounding_set(kept: frozenset[int]) -> None:
    for capability in KNOWN:
        if capability in kept:
            continue

        try:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
        except OSError:
            # A process that is already sealed cannot drop a capability from the bounding set, and has none there to
            # drop.
            if syscalls.prctl(syscalls.PR_CAPBSET_READ, capability):
                raise


def _set(mask: int) -> None:
    try:
        syscalls.capset(mask, mask, 0)
    except OSError as error:
        raise JailError("capabilities", error.errno or 0, f"cannot reduce to the set {mask:#x}") from error
