"""The machine of a card: kernel, security modules, Landlock, control groups, and the policy of system calls.

Runs in the user's process and reads values of the kernel and of one sandbox. None of them names the machine or its
user.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version

from fumehood.scorecard.scene import POLICY
from fumehood.values.sandbox import Isolation
from fumehood_jail import landlock, seccomp

_LSMS = "/sys/kernel/security/lsm"


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine on which the verdicts depend.

    Attributes:
        kernel: Its release.
        architecture: As in uname(2).
        lsms: The security modules that are active, or why they are not known.
        landlock_abi: The version of Landlock; 0 where there is none.
        cgroups: The version of control groups that hold sandboxes, or why none do.
        user: `root` or `an ordinary user`.
        level: The level of isolation of the sandbox that was attacked.
        missing: Its layers that are not on, and why.
        policy_sha256: The compiled filter of system calls.
        version: Of this product.
    """

    kernel: str
    architecture: str
    lsms: str
    landlock_abi: int
    cgroups: str
    user: str
    level: str
    missing: tuple[str, ...]
    policy_sha256: str
    version: str


def describe_machine(isolation: Isolation) -> Machine:
    """Return the facts, for a sandbox with this isolation."""
    memory = next((layer for layer in isolation.layers if layer.name == "cgroup memory"), None)
    return Machine(
        kernel=platform.release(),
        architecture=platform.machine(),
        lsms=_lsms(),
        landlock_abi=landlock.available_abi(),
        cgroups=memory.why if memory is not None else "none",
        user="root" if os.geteuid() == 0 else "an ordinary user",
        level=isolation.level,
        missing=tuple(f"{layer.name}: {layer.state}, {layer.why}" for layer in isolation.missing),
        policy_sha256=seccomp.policy_digest(seccomp.compile_policy(POLICY)),
        version=version("fumehood"),
    )


def _lsms() -> str:
    try:
        with open(_LSMS, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "not told: securityfs is not mounted"
