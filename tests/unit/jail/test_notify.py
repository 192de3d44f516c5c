"""A listener never keeps its reader waiting, whatever the kernel does: one loop reads those of all sandboxes."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from fumehood_jail import notify, seccomp, syscalls


@pytest.fixture
def calling() -> Iterator[tuple[int, int, socket.socket]]:
    """A process that makes one call of which its filter tells for each byte that it gets, its listener, and its socket.

    It ends with the error of the last call, when its socket does.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = seccomp.compile_policy(os.path.join(seccomp.POLICIES, "sandbox.toml"), is_notifying=True)
    pid = os.fork()

    if pid == 0:
        ours.close()
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        socket.send_fds(theirs, [b"!"], [seccomp.load_notifying(program)])
        number = 0

        while theirs.recv(1):
            try:
                syscalls.setns(-1)
            except OSError as error:
                number = error.errno or 0

        os._exit(number)

    theirs.close()
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    yield pid, listener, ours
    ours.close()
    os.close(listener)


@pytest.mark.timeout(20)
def test_nothing_is_taken_where_nobody_calls(calling):
    """The ioctl alone would wait for a call, on every kernel."""
    pid, listener, sock = calling
    assert notify.receive(listener) is None
    assert not notify.is_unused(listener)
    sock.send(b"!")
    notify.wait(listener)
    call = notify.receive(listener)
    assert call is not None
    assert call.pid == pid
    assert notify.receive(listener) is None
    notify.refuse(listener, call)
    sock.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EPERM


@pytest.mark.timeout(20)
def test_the_end_of_all_callers_is_no_call(calling):
    """What a kernel before 6.11 would wait for in vain."""
    pid, listener, sock = calling
    sock.send(b"!")
    notify.wait(listener)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    notify.wait(listener)
    assert notify.receive(listener) is None
    assert notify.is_unused(listener)
