"""A program as the root of a user namespace with one id, where what takes more rights succeeds without being done.

For builders of images that a user runs without subordinate ids: they own all files, and change owners and users for the
sake of what they build alone. `command` names a process of its own, between the host process and the program; there
`main` runs. This isolates nothing: the program has the files, the processes and the network of its user.
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
    """Returns the command that runs a program so; it ends with status 125 and a reason if that cannot be had here."""
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
    """After: user and group 0 are the caller's own ids, mounts are its own, and what takes other ids does nothing."""
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    contents = {"setgroups": "deny", **{name: f"0 {own} 1" for name, own in ids.items()}}

    for name, content in contents.items():
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)

    seccomp.load(seccomp.compile_policy(_emulation()))


def _emulation() -> seccomp.Policy:
    """Returns a policy that allows every call that has a name, but for those that steps of builds emulate."""
    policy = seccomp.read_policy(os.path.join(seccomp.POLICIES, "image_emulated.toml"))
    emulated = [check for check in policy["check"] if check["answer"] == "SUCCESS" and not check["when"]]
    others = seccomp.known_calls() - {check["call"] for check in emulated}
    return {"unknown": policy["unknown"], "allow": {"all": sorted(others)}, "check": emulated}
