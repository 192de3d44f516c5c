"""The fence: Landlock as the first barrier, for files, TCP, signals and abstract sockets, without namespaces.

Runs in the zygote before its interpreter starts, and in each process forked from it: domains are nested, and each one
can only remove rights. Unlike `landlock`, which is the second barrier behind mounts, it must never be weaker than
asked for: a kernel that cannot scope signals is refused.
"""

from __future__ import annotations

import os
import stat
import struct

from fumehood_jail import landlock, syscalls
from fumehood_jail.errors import JailError

# The first version that scopes signals: without it guest code could kill every process of the host's user.
NEEDED_ABI = 6
_STEP = "landlock"

# include/uapi/linux/landlock.h: all rights on files that exist up to NEEDED_ABI, those on TCP, and the scopes.
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_ALL_FILES = (1 << 16) - 1
_ALL_TCP = 0b11
_ALL_SCOPES = 0b11

_READ = _EXECUTE | _READ_FILE | _READ_DIR
_CHANGE = _ALL_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV
# The rights that apply to something other than a directory; the kernel refuses others there.
_OF_ONE_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_HINT = "Linux 6.12 and later have it; boot with 'landlock' in the kernel's lsm= list"


def why_impossible() -> str | None:
    """Returns why this kernel cannot enforce the fence, or None if its Landlock version suffices."""
    abi = landlock.available_abi()

    if abi == 0:
        return "the kernel has no Landlock, or it is switched off"

    return None if abi >= NEEDED_ABI else f"Landlock of this kernel (ABI {abi}) does not fence signals"


def fence(*, readable: list[str], writable: list[str], devices: list[str]) -> None:
    """Restricts this process and its children to the listed paths, and their signals to processes behind the fence.

    Before: no_new_privs is set, this is the only thread. After: nothing else can be opened; no TCP; signals and
    abstract sockets reach only processes in the same Landlock domain or below. Paths that do not exist are skipped.

    Args:
        readable: May be read and executed.
        writable: May be changed too, but for making device nodes.
        devices: May be opened for reading and writing.

    Raises:
        JailError: The kernel cannot enforce all of it.
    """
    why = why_impossible()

    if why is not None:
        raise JailError(_STEP, 0, why, _HINT)

    ruleset = syscalls.landlock_create_ruleset(struct.pack("=QQQ", _ALL_FILES, _ALL_TCP, _ALL_SCOPES))
    try:
        for paths, rights in ((readable, _READ), (writable, _CHANGE), (devices, _DEVICE)):
            for path in paths:
                _allow(ruleset, path, rights)

        syscalls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def fence_signals() -> None:
    """Stops this process and its children from signalling processes outside this new Landlock domain."""
    ruleset = syscalls.landlock_create_ruleset(struct.pack("=QQQ", 0, 0, _ALL_SCOPES))
    try:
        syscalls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return  # a path that cannot be opened needs no rule

    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_ONE_FILE

        syscalls.landlock_add_rule_path(ruleset, rights, fd)
    finally:
        os.close(fd)
