"""A trial of what forking a live sandbox needs: holding a process in a call that its filter reports.

Runs in the process of the probe, with a child in a user namespace of its own, like the processes that the host holds.
"""

from __future__ import annotations

import array
import os
import signal
import socket

from fumehood_jail import notify, seccomp, syscalls
from fumehood_jail.tracing import HeldProcess

_ASKED_FOR = "setns"


def hold_a_child(program: bytes) -> None:
    """Makes a child process fork by tracing it, as a fork of a live sandbox does.

    Args:
        program: A filter that was compiled with `is_notifying`.

    Raises:
        OSError: The kernel refused a step.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)

    if pid == 0:
        ours.close()
        _wait(theirs, program)

    theirs.close()
    pidfd = os.pidfd_open(pid)
    try:
        with ours:
            listener = _take_listener(ours)
        try:
            _hold(pid, listener)
        finally:
            os.close(listener)
    finally:
        _see_it_end(pidfd)
        os.close(pidfd)


def _wait(sock: socket.socket, program: bytes) -> None:
    """Runs in the child: blocks in a reported call until it is killed."""
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        socket.send_fds(sock, [b"0"], [seccomp.load_notifying(program)])
        syscalls.setns(-1)
    except OSError as error:
        sock.send(str(error.errno or 0).encode("ascii"))
    finally:
        os._exit(0)


def _take_listener(sock: socket.socket) -> int:
    word, ancillary, _, _ = sock.recvmsg(64, socket.CMSG_SPACE(array.array("i").itemsize))

    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return array.array("i", content)[0]

    number = int(word or b"0")
    raise OSError(
        number, f"no listener for a filter: {os.strerror(number) if number else 'the child has ended'}"
    )


def _hold(pid: int, listener: int) -> None:
    # The call has been reported, so the child is blocked in it.
    notify.wait(listener)
    notify.receive(listener)
    held = HeldProcess(pid)
    try:
        if not held.is_stopped_in(_ASKED_FOR):
            raise OSError(0, "a process was stopped, but not in its call")

        started = held.fork(syscalls.CLONE_VM | syscalls.CLONE_VFORK | syscalls.SIGCHLD)
        started.leave()
        held.forked()
    finally:
        held.end()


def _see_it_end(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except (ProcessLookupError, ChildProcessError):
        return  # the tracer has already reaped it
