"""Landlock: a second access control on the file system, independent of mounts and permissions.

Runs in the init of a sandbox and in each context, after the mounts are finished: a process under Landlock can mount
nothing any more. Paths that are not listed cannot be opened, even if a mount was forgotten. It never covers files that
are already open.
"""

from __future__ import annotations

import os
import stat
import struct

from fumehood_jail import syscalls
from fumehood_jail.errors import JailError

# include/uapi/linux/landlock.h
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
_SCOPE_SIGNAL = 1 << 1

# The rights that exist from the first version on, and the version that brought each later one.
_FIRST_RIGHTS = (1 << 13) - 1
_LATER_RIGHTS = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
_SCOPES_SINCE = 6
_NEWEST_KNOWN_ABI = 7

# The rights that apply to something other than a directory; the kernel refuses others there.
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _TRUNCATE | _IOCTL_DEV


def available_abi() -> int:
    """Returns the version of Landlock that the kernel offers, or 0 where it is missing or switched off."""
    try:
        return syscalls.landlock_abi()
    except OSError:
        return 0


def restrict(
    *, read_only: list[str], read_write: list[str], devices: tuple[str, ...] = (), scoped: bool = True
) -> int:
    """Restricts this process and its children to what lies beneath the listed paths.

    Before: no_new_privs is set, all mounts are made, this is the only thread. After: everything else on the file system
    is out of reach; with `scoped`, abstract sockets and signals reach only processes under the same restriction
    (version 6). TCP is left to the network namespace.

    Args:
        read_only: May be read and executed.
        read_write: May be changed too, except for making device nodes.
        devices: May be opened for reading and writing and take device ioctls; nothing may be made there.
        scoped: Whether the process may signal only itself and processes that it starts.

    Returns:
        The version enforced; 0 where the kernel has no Landlock and nothing was restricted.
    """
    abi = min(available_abi(), _NEWEST_KNOWN_ABI)
    if abi == 0:
        return 0

    handled = _rights_of(abi)
    scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if scoped and abi >= _SCOPES_SINCE else 0
    try:
        ruleset_fd = syscalls.landlock_create_ruleset(struct.pack("=QQQ", handled, 0, scopes))
    except OSError as error:
        raise JailError("landlock", error.errno or 0, f"cannot make a ruleset of version {abi}") from error

    try:
        for path in read_only:
            _allow(ruleset_fd, path, _READ_ONLY & handled)

        for path in read_write:
            _allow(ruleset_fd, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))

        for path in devices:
            _allow(ruleset_fd, path, _DEVICE & handled)

        syscalls.landlock_restrict_self(ruleset_fd)
    except OSError as error:
        raise JailError("landlock", error.errno or 0, str(error)) from error
    finally:
        os.close(ruleset_fd)

    return abi


def _rights_of(abi: int) -> int:
    rights = _FIRST_RIGHTS
    for since, right in _LATER_RIGHTS:
        if abi >= since:
            rights |= right

    return rights


def _allow(ruleset_fd: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS

        syscalls.landlock_add_rule_path(ruleset_fd, rights, fd)
    finally:
        os.close(fd)
