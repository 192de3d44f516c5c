"""Moving: how a fork of a checkpoint enters the namespaces of a forked sandbox, and becomes a context there.

Runs in forks of a checkpoint. The first one asks to enter a namespace, no matter which. The host holds it there, has
it enter all those of the fork, which are empty but for an init that waits, and lets it go on as the fork's user, under
the same system call filter and Landlock rules as before. What it forks then is born in the new PID namespace, within
the fork's control groups, and forks the context: that is to be a child of the fork's init, which takes leave of it.
Both that came before it end.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, List

from fumehood_jail import launch, syscalls
from fumehood_jail.errors import JailError

# Channel, standard output, standard error.
_OWN_FDS = 3
_NOWHERE = -1
_HERE = b"!"


def move(sock: socket.socket, fork: Callable[[], int]) -> List[int]:
    """Moves; returns in the new process only, with channel, standard output and standard error.

    Args:
        sock: To the host, which knows the processes that move by the credentials of what they send.
        fork: Forks.
    """
    try:
        sock.send(_HERE)
        data, fds, _, _ = socket.recv_fds(sock, 1, _OWN_FDS)

        if not data:
            os._exit(0)

        # Where it waits the host takes over.
        syscalls.setns(_NOWHERE)
        child = fork()

        if child:
            _take_leave(child)
            os._exit(0)

        if fork():
            os._exit(0)

        launch.settle()
        sock.send(_HERE)
    except (OSError, JailError) as error:
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


def report(sock: socket.socket, error: OSError | JailError) -> None:
    """Tells the host why nobody comes."""
    try:
        sock.send(str(error.errno or 0).encode("ascii"))
    except OSError:
        return
