"""Numbers of the system calls that `syscalls` makes, by machine; policies/syscalls_*.json hold the full tables.

Imported in every process that imports `syscalls`.
"""

from __future__ import annotations

import os
import sys

_NUMBERS = {
    "x86_64": {
        "capget": 125,
        "capset": 126,
        "clone": 56,
        "close": 3,
        "close_range": 436,
        "exit_group": 231,
        "fsconfig": 431,
        "fsmount": 432,
        "fsopen": 430,
        "get_robust_list": 274,
        "inotify_add_watch": 254,
        "inotify_init1": 294,
        "inotify_rm_watch": 255,
        "landlock_add_rule": 445,
        "landlock_create_ruleset": 444,
        "landlock_restrict_self": 446,
        "mount": 165,
        "mount_setattr": 442,
        "move_mount": 429,
        "pivot_root": 155,
        "prctl": 157,
        "ptrace": 101,
        "seccomp": 317,
        "sendfile": 40,
        "set_robust_list": 273,
        "set_tid_address": 218,
        "sethostname": 170,
        "setresgid": 119,
        "setresuid": 117,
        "setns": 308,
        "signalfd4": 289,
        "umount2": 166,
        "unshare": 272,
    },
    "aarch64": {
        "capget": 90,
        "capset": 91,
        "clone": 220,
        "close": 57,
        "close_range": 436,
        "exit_group": 94,
        "fsconfig": 431,
        "fsmount": 432,
        "fsopen": 430,
        "get_robust_list": 100,
        "inotify_add_watch": 27,
        "inotify_init1": 26,
        "inotify_rm_watch": 28,
        "landlock_add_rule": 445,
        "landlock_create_ruleset": 444,
        "landlock_restrict_self": 446,
        "mount": 40,
        "mount_setattr": 442,
        "move_mount": 429,
        "pivot_root": 41,
        "prctl": 167,
        "ptrace": 117,
        "seccomp": 277,
        "sendfile": 71,
        "set_robust_list": 99,
        "set_tid_address": 96,
        "sethostname": 161,
        "setresgid": 149,
        "setresuid": 147,
        "setns": 268,
        "signalfd4": 74,
        "umount2": 39,
        "unshare": 97,
    },
}
MACHINE = os.uname().machine
if MACHINE not in _NUMBERS or sys.maxsize < 2**32:
    raise ImportError(f"fumehood_jail knows 64-bit x86_64 and aarch64, not {MACHINE!r}")

HERE = _NUMBERS[MACHINE]
