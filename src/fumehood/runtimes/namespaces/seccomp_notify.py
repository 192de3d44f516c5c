"""Answers for the system calls that the filter of one context reports: they are refused, and noted.

No call is let through but those that the host itself makes a process carry out, which it holds at that time
(`linux_entering`). The listener belongs to the context and to all that is forked from it, checkpoints and forked
sandboxes included. A process that floods the host with refused calls waits for its answers, so that the host has time
for others.
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
# How many are answered at once; beyond that, each waits.
_PROMPT = 32
_PAUSE_SECONDS = 0.02
_MAX_FDS = 4


@dataclass(slots=True)
class _Migrator:
    """A process that the host will hold.

    Attributes:
        waits: Done when it waits for that, in a call which is not answered.
        ordered: The name and the arguments of the call that it is to make, and that is let through.
        gifts: Descriptors that it is given then.
        given: The numbers that they have there; more of them where the call was interrupted, and told of again.
    """

    waits: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ordered: tuple[str, tuple[int, ...]] | None = None
    gifts: Sequence[int] = ()
    given: tuple[int, ...] = ()


class RefusedCalls:
    """The listener of one context.

    Args:
        names: The calls that filters tell of, by their numbers.
        on_refused: Called with the name of each refused call, and the number of the process on the host.
    """

    def __init__(self, names: Mapping[int, str], on_refused: Callable[[str, int], None]) -> None:
        self.on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._names = names
        self._fd = -1
        self._sock: socket.socket | None = None
        # By their numbers on the host.
        self._migrators: dict[int, _Migrator] = {}
        self._count = 0
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody is left who could ask."""
        return self._fd < 0 and self._sock is None

    @property
    def listens(self) -> bool:
        """Whether the context has handed over its listener; where the kernel has none for it, it never does."""
        return self._fd >= 0

    def expect(self) -> int:
        """Makes a socket for the context to hand its listener over; returns the guest's end, the caller's to close."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._sock = ours
        self._loop.add_reader(ours.fileno(), self._take)
        return theirs.detach()

    def expect_migrator(self, pid: int, *, again: bool = False) -> asyncio.Future[None]:
        """Leaves the next attempt of a process to enter a namespace unanswered; done when it waits there.

        Args:
            pid: Its number.
            again: Whether it is expected already, by the same caller.

        Raises:
            ForkError: Somebody else expects it: it says that it moves to two forks.
        """
        if not again and pid in self._migrators:
            raise ForkError(step="move a process into the fork", reason="it moves to another one")

        migrator = self._migrators[pid] = _Migrator()

        # A flood must not hold it up: forks have this listener too.
        if self._later is not None:
            self._later.cancel()
            self._go_on()

        return migrator.waits

    def order(self, pid: int, name: str, arguments: tuple[int, ...], gifts: Sequence[int] = ()) -> None:
        """Lets a process that is held make this call, and no other; may be called in any thread.

        Args:
            pid: Its number.
            name: The call's.
            arguments: All of them.
            gifts: Descriptors that it is given before, if the filter tells of the call.
        """
        migrator = self._migrators[pid]
        migrator.gifts, migrator.given = gifts, ()
        migrator.ordered = name, arguments

    def given(self, pid: int) -> tuple[int, ...]:
        """Returns the numbers that the gifts of the last order have in the process; may be called in any thread.

        Where the call was interrupted some or all have been given before: those that came last are whole.
        """
        return self._migrators[pid].given

    def forbid(self, pid: int) -> None:
        """Answers it as all others."""
        self._migrators.pop(pid, None)

    def close(self) -> None:
        """Answers no more; the calls are refused by the kernel."""
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

        # A signal may have interrupted it, and it waits once more.
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
                # One by one: what it has got before it was interrupted stays there.
                migrator.given += (notify.give(self._fd, call, fd),)
        except OSError:
            # It has no room, or was interrupted: its holder sees that it has not got all.
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


def number_inside(pid: int) -> int:
    """Returns the number that a process has in its own PID namespace."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return next(int(line.split()[-1]) for line in file if line.startswith(b"NSpid:"))
