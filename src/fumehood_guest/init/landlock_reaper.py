"""The reaper: ends a sandbox as a whole where there is no PID namespace for the kernel to end.

Runs as a fork of the zygote, one for each sandbox, in the sandbox's own Landlock domain. It forks init, and then waits
for init's end, the host's request, or the host's end. Then one call (`kill(-1)`, which Landlock restricts to the
domain) kills every process of the sandbox at once, whatever their parents and sessions; no process can escape by
forking. Guest code is in a domain nested in this one and cannot affect the reaper. It must never read data from the
guest.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from typing import Any, Dict, List, NoReturn

from fumehood_guest.init import landlock_init
from fumehood_guest.init.init import report_failure
from fumehood_guest.shared.packets import close_all
from fumehood_jail import landlock_launch

# The descriptors that the zygote receives for a sandbox; all further ones belong to its control groups.
_GIVEN_FDS = 4
_PAUSE_MS = 5


def main(fds: List[int], options: Dict[str, Any], program: bytes, shell: Any) -> NoReturn:
    """Becomes the reaper of a new sandbox.

    Args:
        fds: The socket of init, the socket for requests of the runtime, a pipe whose end of file ends the sandbox,
            and a pidfd of the host; then the descriptors of the control groups.
        options: The settings of this one sandbox.
        program: The system call filter of guest code.
        shell: The prepared interpreter, for contexts.
    """
    sock, orders, liveness, host = fds[:_GIVEN_FDS]
    try:
        os.setsid()
        os.mkdir(options["folder"], 0o700)
        landlock_launch.enter_sandbox(options, fds[_GIVEN_FDS:])
        init = os.fork()
    except BaseException as error:
        report_failure(sock, error)
        os._exit(1)

    if init == 0:
        close_all([liveness, host])
        landlock_init.main(sock, orders, options, program, shell)

    close_all([sock, orders])
    _wait(init, liveness, host)
    _end_all_processes()
    _remove(options["folder"])
    os._exit(0)


def _wait(init: int, liveness: int, host: int) -> None:
    poller = select.poll()

    for fd in (os.pidfd_open(init), liveness, host):
        poller.register(fd, select.POLLIN)

    poller.poll()


def _end_all_processes() -> None:
    """Kills all processes in the domain but this one, until there are no children left to wait for."""
    poller = select.poll()

    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no process is left, or only those outside the domain

        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

            if pid == 0:
                break

        poller.poll(_PAUSE_MS)


def _remove(folder: str) -> None:
    """Removes the guest's files; the host removes what cannot be removed from here."""
    sys.setrecursionlimit(1 << 16)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        return
