"""The reaper: ends a sandbox as a whole where there is no PID namespace that the kernel would end.

Runs as a fork of the zygote, one for each sandbox, behind the sandbox's own fence. It forks init, and then waits: for
init's end, for the host's word, or for the host's end. Whichever comes first, one call (`kill(-1)`, which Landlock
keeps within the fence) ends every process of the sandbox at once, whatever became of its parents and sessions; nobody
can be forked past it. Guest code stands behind a fence within this one and can do nothing to the reaper. It must never
read what the guest says.
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

# What the zygote is given for a sandbox; all further ones are the control group descriptors of its control groups.
_GIVEN_FDS = 4
_PAUSE_MS = 5


def main(fds: List[int], options: Dict[str, Any], program: bytes, shell: Any) -> NoReturn:
    """Becomes the reaper of a new sandbox.

    Args:
        fds: The socket of init, the socket for orders of the runtime, a pipe that ends when the sandbox is to end,
            and the host as a pidfd; then the descriptors of the control groups.
        options: What is different from sandbox to sandbox.
        program: The system call filter of guest code.
        shell: The prepared interpreter, for contexts.
    """
    sock, orders, leash, host = fds[:_GIVEN_FDS]
    try:
        os.setsid()
        os.mkdir(options["folder"], 0o700)
        landlock_launch.enter_sandbox(options, fds[_GIVEN_FDS:])
        init = os.fork()
    except BaseException as error:
        report_failure(sock, error)
        os._exit(1)

    if init == 0:
        close_all([leash, host])
        landlock_init.main(sock, orders, options, program, shell)

    close_all([sock, orders])
    _wait(init, leash, host)
    _end_everybody()
    _remove(options["folder"])
    os._exit(0)


def _wait(init: int, leash: int, host: int) -> None:
    poller = select.poll()

    for fd in (os.pidfd_open(init), leash, host):
        poller.register(fd, select.POLLIN)

    poller.poll()


def _end_everybody() -> None:
    """Kills all who are behind the fence but this process, until there is nobody left to wait for."""
    poller = select.poll()

    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left, or nobody but those outside, whom it does not reach

        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

            if pid == 0:
                break

        poller.poll(_PAUSE_MS)


def _remove(folder: str) -> None:
    """Removes what the guest has left; what cannot be removed from here the host finds."""
    sys.setrecursionlimit(1 << 16)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        return
