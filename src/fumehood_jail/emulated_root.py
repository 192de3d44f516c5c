"""Runs a program as root of a user namespace with one id; calls that need more rights do nothing and succeed.

For image builders that a user runs without subordinate ids: this user owns all their files, so a change of owner or
user only matters inside the built image. `command` returns the command of a process between the host process and the
program; that process runs `main`. This isolates nothing: the program has the files, the processes and the network of
its user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fumehood_jail import seccomp, syscalls
from fumehood_jail.errors import JailError

_STARTER = "import sys; sys.path.insert(0, {folder!r}); from fumehood_jail.emulated_root import main; main()"
_FAILED = 125


def command(argv: Sequence[str]) -> list[str]:
    """Returns the command that runs a program as emulated root.

    It exits with status 125 and a reason if this system cannot.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-I", "-S", "-c", _STARTER.format(folder=folder), *argv]


def main() -> None:
    """Becomes root of a new user namespace, and executes the program that the arguments name."""
    try:
        _become_root()
    except (OSError, JailError) as error:
        os.write(2, f"fumehood: there is no user namespace for an ordinary user here: {error}\n".encode())
        os._exit(_FAILED)

    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - a program of the user's choice, by its path


def _become_root() -> None:
    """After: user and group 0 are the caller's ids, mounts are private, and calls that need other ids do nothing."""
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    contents = {"setgroups": "deny", **{name: f"0 {own} 1" for name, own in ids.items()}}

    for name, content in contents.items():
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)

    seccomp.load(seccomp.compile_policy(_emulation()))


def _emulation() -> seccomp.Policy:
    """Returns a policy that allows every named call, and emulates those that build steps make needlessly."""
    policy = seccomp.read_policy(os.path.join(seccomp.POLICIES, "image_emulated.toml"))
    emulated = [check for check in policy["check"] if check["answer"] == "SUCCESS" and not check["when"]]
    others = seccomp.known_calls() - {check["call"] for check in emulated}
    return {"unknown": policy["unknown"], "allow": {"all": sorted(others)}, "check": emulated}
