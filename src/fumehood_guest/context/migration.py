"""Moving: how a fork of a checkpoint enters the namespaces of a forked sandbox, and becomes a context there.

Runs in forks of a checkpoint. The first one waits in a call that the host takes over: it holds it there, and makes it
enter all namespaces of the fork, which are empty but for an init that waits, give up what that takes, and fork. Only
its child runs on: as the fork's user, in its PID namespace and control groups, under the same system call filter and
Landlock rules as before, and as a child of the fork's init. The first one ends.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, List

# Channel, standard output, standard error.
_OWN_FDS = 3
_HERE = b"!"


def move(sock: socket.socket, fork: Callable[[], int]) -> List[int]:
    """Moves; returns in the new process only, with channel, standard output and standard error.

    Args:
        sock: To the host, which knows the processes that move by the credentials of what they send.
        fork: Waits until the host has this process fork.
    """
    try:
        sock.send(_HERE)
        data, fds, _, _ = socket.recv_fds(sock, 1, _OWN_FDS)

        if not data:
            os._exit(0)

        child = fork()

        if child:
            _take_leave(child)
            os._exit(0)
    except OSError as error:
        report(sock, error)
        os._exit(0)

    sock.close()
    return fds


def _take_leave(child: int) -> None:
    # Here may be whoever the user's code has named for that, and perhaps sleeps: then the fork could not end.
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return  # user code has said that nobody waits for children


def report(sock: socket.socket, error: OSError) -> None:
    """Tells the host why nobody comes."""
    try:
        sock.send(str(error.errno or 0).encode("ascii"))
    except OSError:
        return
