"""A process that is held makes the calls that it is told to, in place of the one in which it waits; no others."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Iterator

import pytest

from fumehood_jail import call_numbers, notify, seccomp, syscalls
from fumehood_jail.tracing import HeldProcess

NOTHING = (0,) * 6


@pytest.fixture
def waiting() -> Iterator[tuple[int, int]]:
    """A process that waits in `setns` for an answer, and the listener; it ends with what the call has returned."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = seccomp.compile_policy(os.path.join(seccomp.POLICIES, "sandbox.toml"), is_notifying=True)
    pid = os.fork()

    if pid == 0:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        socket.send_fds(theirs, [b"!"], [seccomp.load_notifying(program)])
        try:
            os._exit(syscalls._call("setns", -1))
        except OSError as error:
            os._exit(100 + (error.errno or 0))

    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    notify.wait(listener)
    call = notify.receive(listener)
    assert call is not None
    assert call.pid == pid
    yield pid, listener
    os.close(listener)
    ours.close()
    theirs.close()


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_it_makes_other_calls_and_goes_on(waiting):
    """What the kernel answers comes back, errors as errors; in the end its own call returns what it is told to."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    assert held.call("prctl", (syscalls.PR_GET_NO_NEW_PRIVS, *NOTHING[1:])) == 1

    with pytest.raises(OSError, match="Bad address"):
        held.call("capset", NOTHING)

    header = held.lay(syscalls.CAPSET_HEADER + bytes(syscalls.CAPSET_BYTES))
    assert held.call("capset", (header, header + len(syscalls.CAPSET_HEADER), 0, 0, 0, 0)) == 0
    held.let_go(7)
    assert exit_code(waiting[0]) == 7


def test_it_makes_another_one_that_is_held_too(waiting):
    """That shares its memory or has a copy, and goes on where it is; whoever made it hears its number."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    between = held.fork(syscalls.CLONE_VM | syscalls.CLONE_VFORK | syscalls.SIGCHLD)
    started = between.fork(syscalls.SIGCHLD)
    assert between.forked() == started.pid
    between.leave()
    assert held.forked() == between.pid
    pidfd = os.pidfd_open(started.pid)
    started.let_go(0)
    select.select([pidfd], [], [])
    os.close(pidfd)
    held.let_go(between.pid % 100)
    assert exit_code(waiting[0]) == between.pid % 100


def test_whom_nobody_lets_go_ends_with_who_holds_it(waiting):
    """Also one that was started meanwhile, and who waits for that."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    started = held.fork(syscalls.CLONE_VM | syscalls.CLONE_VFORK | syscalls.SIGCHLD)
    started.end()
    assert held.forked() == started.pid
    held.end()

    for pid in (started.pid, held.pid):
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_signals_wait_while_it_is_held(waiting):
    """What would end it ends it when it is let go."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    os.kill(waiting[0], signal.SIGTERM)
    assert held.call("prctl", (syscalls.PR_GET_NO_NEW_PRIVS, *NOTHING[1:])) == 1
    held.let_go(7)
    assert exit_code(waiting[0]) == -signal.SIGTERM


def test_a_call_that_a_stop_follows_is_made_once(waiting, monkeypatch):
    """SIGCONT stops a traced process once more, behind the call that it has completed, before the step is reported."""
    pid, _ = waiting
    monkeypatch.setitem(call_numbers.HERE, "kill", {"x86_64": 62, "aarch64": 129}[call_numbers.MACHINE])
    held = HeldProcess(pid)
    assert held.is_stopped_in("setns")
    # It sends itself the signal, so that each repetition would be stopped as well.
    assert held.call("kill", (pid, signal.SIGCONT, 0, 0, 0, 0)) == 0
    assert held.call("kill", (pid, signal.SIGSTOP, 0, 0, 0, 0)) == 0
    assert held.call("prctl", (syscalls.PR_GET_NO_NEW_PRIVS, *NOTHING[1:])) == 1
    held.let_go(7)
    assert exit_code(pid) == 7


def test_a_stop_while_it_forks_does_not_outlast_the_hold(waiting):
    """What its tracer has not taken of its steps would be delivered to it when it is let go, and end it."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    started = held.fork(syscalls.SIGCHLD)
    os.kill(waiting[0], signal.SIGCONT)
    assert held.forked() == started.pid
    started.end()
    held.let_go(7)
    assert exit_code(waiting[0]) == 7


def test_one_that_is_elsewhere_is_left_alone(waiting):
    """It goes on with what it was at, here to wait for its answer."""
    held = HeldProcess(waiting[0])
    assert not held.is_stopped_in("sethostname")
    notify.wait(waiting[1])
    call = notify.receive(waiting[1])
    assert call is not None
    notify.refuse(waiting[1], call)
    assert exit_code(waiting[0]) == 100 + errno.EPERM


def test_one_that_somebody_has_stopped_is_left_alone_until_it_goes_on(waiting):
    """Whoever held it would let it go as somebody whom nobody may let go on."""
    pid, listener = waiting
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert not HeldProcess(pid).is_stopped_in("setns")
    os.kill(pid, signal.SIGCONT)
    notify.wait(listener)
    assert notify.receive(listener) is not None
    held = HeldProcess(pid)
    assert held.is_stopped_in("setns")
    held.let_go(7)
    assert exit_code(pid) == 7


def test_one_that_is_not_let_go_ends(waiting):
    """Whoever holds it has reaped it, being its parent here as well."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    held.end()

    with pytest.raises(ChildProcessError):
        os.waitpid(waiting[0], 0)


def test_one_that_ends_meanwhile_is_reported_of(waiting):
    """Whoever ends it."""
    held = HeldProcess(waiting[0])
    assert held.is_stopped_in("setns")
    os.kill(waiting[0], signal.SIGKILL)

    with pytest.raises(ProcessLookupError):
        held.call("prctl", (syscalls.PR_GET_NO_NEW_PRIVS, *NOTHING[1:]))

    held.end()
