"""Answers for the system calls of one context, of which its filter tells: they are refused, and noted.

Runs in the host process, on the engine's loop. One call is let through: a process that the host has asked to move
into a forked sandbox enters the namespaces for which it was handed descriptors, so many times and no more. The
listener is the context's, and of all that is forked from it: checkpoints and forked sandboxes as well. Who makes
refused calls in a flood waits for its answers, so that the host has time for others.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Mapping

from fumehood_jail import notify

_SETNS = "setns"
_SETRESUID = "setresuid"
# So many are answered at once; from then on each waits.
_PROMPT = 32
_PAUSE_SECONDS = 0.02
_MAX_FDS = 4


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
        # How many namespaces a process may still enter or ids take, by its number on the host.
        self._movers: dict[int, int] = {}
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

    def let_move(self, pid: int, times: int) -> None:
        """Lets a process enter namespaces, or take the id of movers, so many times."""
        self._movers[pid] = times

        # Who floods must not hold it up: forks have this listener too.
        if self._later is not None:
            self._later.cancel()
            self._go_on()

    def forbid(self, pid: int) -> None:
        """Takes that back."""
        self._movers.pop(pid, None)

    def close(self) -> None:
        """Answers no more; the calls are refused by the kernel."""
        self._close_sock()

        if self._later is not None:
            self._later.cancel()

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
            self._close_if_unused()
            return

        name = self._names.get(call.number, str(call.number))

        if name in (_SETNS, _SETRESUID) and self._movers.get(call.pid, 0) > 0:
            self._movers[call.pid] -= 1
            notify.permit(self._fd, call)
            return

        notify.refuse(self._fd, call)
        self.on_refused(name, call.pid)
        self._count += 1

        if self._count > _PROMPT and not self._movers:
            self._loop.remove_reader(self._fd)
            self._later = self._loop.call_later(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._later = None
        self._loop.add_reader(self._fd, self._answer)

    def _close_if_unused(self) -> None:
        """The kernel hangs up when the last process under the filter has ended."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)

        if any(events & select.POLLHUP for _, events in poller.poll(0)):
            self.close()

    def _close_sock(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None


def number_inside(pid: int) -> int:
    """Returns the number that a process has in its own PID namespace."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return next(int(line.split()[-1]) for line in file if line.startswith(b"NSpid:"))
