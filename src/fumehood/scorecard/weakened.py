"""`python -m fumehood.scorecard.weakened`: reports what a host without Landlock does.

Runs as a process of its own, as it takes Landlock away from itself for good: a filter answers its system calls as a
kernel without it would. Prints the layers that a sandbox then misses, and whether a strict one has started.
"""

from __future__ import annotations

import json
import struct
import sys

from fumehood.api.sandbox import Sandbox
from fumehood.assemble import local_backend
from fumehood.errors import IsolationUnavailableError
from fumehood_jail import syscalls

# landlock_create_ruleset has this number on every machine.
_LANDLOCK = 444
_ENOSYS = 38
# struct sock_filter: load the number; if it is equal, answer ENOSYS; else allow.
_STEPS = ((0x20, 0, 0, 0), (0x15, 0, 1, _LANDLOCK), (0x06, 0, 0, 0x50000 | _ENOSYS), (0x06, 0, 0, 0x7FFF0000))


def main() -> int:
    """Hide Landlock, make two sandboxes, and print the missing layers and whether strict refused."""
    _take_landlock_away()

    backend = local_backend()

    with Sandbox(backend=backend) as sandbox:
        missing = [layer.name for layer in sandbox.get_info().isolation.missing]

    try:
        with Sandbox(strict=True, backend=backend):
            strict = "started"
    except IsolationUnavailableError:
        strict = "refused"

    sys.stdout.write(json.dumps({"missing": missing, "strict": strict}) + "\n")
    return 0


def _take_landlock_away() -> None:
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.seccomp_set_filter(b"".join(struct.pack("=HBBI", *step) for step in _STEPS))


if __name__ == "__main__":
    sys.exit(main())
