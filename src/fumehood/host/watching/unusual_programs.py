"""Programs that code of a model seldom has a reason to start: names alone, for an event that says so.

Runs in the host process; pure functions. A name proves nothing, and a program under another name is not seen: this is a
reason to look, never one to trust.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# Ways to other machines, into other processes, up in rights, and out.
# fmt: off
_NAMES = frozenset((
    "bpftrace", "bpftool", "capsh", "chroot", "crictl", "ctr", "docker", "dmesg", "ftp", "gdb",
    "gdbserver", "insmod", "iptables", "kexec", "kubectl", "ltrace", "masscan", "mknod", "modprobe",
    "mount", "nc", "ncat", "netcat", "newgidmap", "newuidmap", "nft", "nmap", "nsenter", "perf",
    "pkexec", "podman", "ptrace", "rsh", "runc", "setcap", "socat", "ssh", "sshd", "strace", "su",
    "sudo", "tcpdump", "telnet", "tftp", "umount", "unshare", "xmrig",
))
# fmt: on
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_MAX_CHARACTERS = 4_000
# Where a shell begins a command: at the start, and after what ends or opens one.
_COMMAND = re.compile(r"(?:^|[;&|(\n`{]|\$\()[^\S\n]*+(?:exec\s+|env\s+|command\s+)?([\w./+-]{1,200})")


class UnusualProgram(NamedTuple):
    """A program that is seldom started."""

    name: str
    is_guess: bool


def unusual_program(argv: Sequence[str]) -> UnusualProgram | None:
    """Returns the first unusual program that a command starts, or that its shell line seems to start; None for none."""
    program = _base(argv[0])

    if program in _NAMES:
        return UnusualProgram(program, is_guess=False)

    if program not in _SHELLS:
        return None

    line = next((argv[at + 1] for at in range(1, len(argv) - 1) if argv[at].endswith("c")), "")
    words = (_base(word) for word in _COMMAND.findall(line[:_MAX_CHARACTERS]))
    found = next((word for word in words if word in _NAMES), None)
    return None if found is None else UnusualProgram(found, is_guess=True)


def _base(path: str) -> str:
    return path[:_MAX_CHARACTERS].rpartition("/")[2]
