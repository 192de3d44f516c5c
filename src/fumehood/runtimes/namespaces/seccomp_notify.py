"""Answers the system calls that the filter of one context reports: they are refused, and recorded.

Only calls that the host itself makes a traced process carry out are permitted (`migration`). The listener serves the
context and all processes forked from it, checkpoints and forked sandboxes included. A process that floods the host with
refused calls has to wait for the answers, so that the host has time for others.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fumehood.errors import ForkError
from fumehood_jail import notify

_SETNS = "setns"
# How many calls are answered at once; beyond that, each waits.
_PROMPT = 32
_PAUSE_SECONDS = 0.02
_MAX_FDS = 4


@dataclass(slots=True)
class _Migrator:
    """A process that the host is about to trace.

    Attributes:
        waits: Done when it is blocked in a reported call, which is left unanswered.
        ordered: The name and the arguments of the call that it is to make, which is permitted.
        gifts: Descriptors that are installed in the process when it makes that call.
        given: The numbers of the installed descriptors; more than `gifts` if the call was interrupted and reported
            again.
        is_claimed_twice: Whether it has claimed to migrate to another fork as well.
    """

    waits: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ordered: tuple[str, tuple[int, ...]] | None = None
    gifts: Sequence[int] = ()
    given: tuple[int, ...] = ()
    is_claimed_twice: bool = False


class RefusedCalls:
    """The listener of one context.

    Args:
        names: The calls that filters report, by their numbers.
        on_refused: Called with the name of each refused call, and the number of the process on the host.
    """

    def __init__(self, names: Mapping[int, str], on_refused: Callable[[str, int], None]) -> None:
        self.on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._names = names
        self._fd = -1
        self._sock: socket.socket | None = None
        # By their pids on the host.
        self._migrators: dict[int, _Migrator] = {}
        self._count = 0
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """True when every process that runs under the filter has ended."""
        return self._fd < 0 and self._sock is None

    @property
    def listens(self) -> bool:
        """Whether the context has handed over its listener; always False where the kernel has no listeners."""
        return self._fd >= 0

    def expect(self) -> int:
        """Makes a socket on which the context hands its listener over; returns the guest's end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._sock = ours
        self._loop.add_reader(ours.fileno(), self._take)
        return theirs.detach()

    def expect_migrator(self, pid: int, *, again: bool = False) -> asyncio.Future[None]:
        """Leaves the next `setns` of a process unanswered; the future is done when the process is blocked there.

        Args:
            pid: Its number.
            again: Whether the same caller expects it already.

        Raises:
            ForkError: Another caller expects the process: it claims to migrate to two forks.
        """
        if not again and pid in self._migrators:
            self._migrators[pid].is_claimed_twice = True
            raise moves_elsewhere()

        is_claimed_twice = self.is_claimed_twice(pid)
        migrator = self._migrators[pid] = _Migrator(is_claimed_twice=is_claimed_twice)

        # A flood of calls must not delay it: forks have this listener too.
        if self._later is not None:
            self._later.cancel()
            self._go_on()

        return migrator.waits

    def is_claimed_twice(self, pid: int) -> bool:
        """Whether an expected process has claimed to migrate to another fork too, for which it is killed."""
        return pid in self._migrators and self._migrators[pid].is_claimed_twice

    def order(self, pid: int, name: str, arguments: tuple[int, ...], gifts: Sequence[int] = ()) -> None:
        """Permits a traced process this one call; may be called in any thread.

        Args:
            pid: Its number.
            name: The call's name.
            arguments: All arguments of the call.
            gifts: Descriptors that are installed in the process before the call, if the filter reports the call.
        """
        migrator = self._migrators[pid]
        migrator.gifts, migrator.given = gifts, ()
        migrator.ordered = name, arguments

    def given(self, pid: int) -> tuple[int, ...]:
        """Returns the numbers that the gifts of the last `order` have in the process; may be called in any thread.

        If the call was interrupted, some or all of them were installed twice; the last numbers are a complete set.
        """
        return self._migrators[pid].given

    def forbid(self, pid: int) -> None:
        """Ends the exception for a process: from now on its calls are refused like all others."""
        self._migrators.pop(pid, None)

    def close(self) -> None:
        """Closes the listener; the kernel then refuses the calls."""
        self._close_sock()

        if self._later is not None:
            self._later.cancel()
            self._later = None

        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _take(self) -> None:
        assert self._sock is not None, "only an open socket is watched"
        try:
            _, fds, _, _ = socket.recv_fds(self._sock, 1, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            fds = []

        self._close_sock()

        for fd in fds:
            if self._fd < 0 and notify.is_listener(fd):
                self._fd = fd
                self._loop.add_reader(fd, self._answer)
            else:
                os.close(fd)

    def _answer(self) -> None:
        call = notify.receive(self._fd)

        if call is None:
            if notify.is_unused(self._fd):
                self.close()

            return

        name = self._names.get(call.number, str(call.number))

        migrator = self._migrators.get(call.pid)

        if migrator is not None and migrator.ordered == (name, call.arguments):
            self._let_through(call, migrator)
            return

        # After an interruption by a signal, the call is reported again.
        if migrator is not None and name == _SETNS and migrator.ordered is None:
            if not migrator.waits.done():
                migrator.waits.set_result(None)

            return

        notify.refuse(self._fd, call)
        self.on_refused(name, call.pid)
        self._count += 1

        if self._count > _PROMPT and not self._migrators:
            self._loop.remove_reader(self._fd)
            self._later = self._loop.call_later(_PAUSE_SECONDS, self._go_on)

    def _let_through(self, call: notify.NotifiedCall, migrator: _Migrator) -> None:
        try:
            for fd in migrator.gifts:
                # One by one: descriptors installed before an interruption stay.
                migrator.given += (notify.give(self._fd, call, fd),)
        except OSError:
            # It has no free descriptor, or was interrupted: the tracer sees that some are missing.
            notify.refuse(self._fd, call)
            return

        notify.permit(self._fd, call)

    def _go_on(self) -> None:
        self._later = None
        self._loop.add_reader(self._fd, self._answer)

    def _close_sock(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None


def moves_elsewhere() -> ForkError:
    """Returns the error of a process that claims to migrate to two forks."""
    return ForkError(step="move a process into the fork", reason="it moves to another one")


def number_inside(pid: int) -> int:
    """Returns the pid of a process in its own PID namespace."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return next(int(line.split()[-1]) for line in file if line.startswith(b"NSpid:"))
