"""Migration: how a fork of a checkpoint enters the namespaces of a forked sandbox, and becomes a context there.

Runs in forks of a checkpoint. The first one blocks in a call on which the host traces it: the host makes it enter all
namespaces of the fork, in which only an idle init lives, drop all rights, and fork. Only its child runs on: as the
fork's user, in its PID namespace and control groups, under the same system call filter and Landlock rules as before,
and as a child of the fork's init. The first one exits.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, List

# Channel, standard output, standard error.
_OWN_FDS = 3
_HERE = b"!"


def move(sock: socket.socket, fork: Callable[[], int]) -> List[int]:
    """Migrates; returns in the new process only, with channel, standard output and standard error.

    Args:
        sock: The socket to the host, which identifies migrating processes by the credentials of their messages.
        fork: Blocks until the host has made this process fork.
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
    # A SIGCHLD handler of user code could run here, and sleep: then the fork could not end.
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return  # user code has set SIGCHLD to be ignored


def report(sock: socket.socket, error: OSError) -> None:
    """Sends the host the errno of a failed migration."""
    try:
        sock.send(str(error.errno or 0).encode("ascii"))
    except OSError:
        return
