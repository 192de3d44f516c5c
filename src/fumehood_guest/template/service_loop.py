"""The loop of a process of the base jail: handles the host's requests, and reaps children.

Used by jail init and zygote, which have one thread each and sleep until there is work. A fork of either leaves the loop
at once, by `leave`, and must never return to it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import signal
from typing import Any, Callable, Dict, List, NoReturn

from fumehood_guest.shared.packets import Packets, close_all

_READ_BYTES = 4096


class Service:
    """Serves the host.

    Args:
        host: The socket to it.
        obey: Called with each request and its descriptors, which it has to close.
        note_end: Called with the pid and the status of each child that has ended: its exit code, or minus the
            number of a signal.
    """

    def __init__(
        self,
        host: Packets,
        obey: Callable[[Dict[str, Any], List[int]], None],
        note_end: Callable[[int, int], None],
    ) -> None:
        self._host = host
        self._obey = obey
        self._note_end = note_end
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> NoReturn:
        """Serves until the host closes the socket, and then exits."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._host.fileno(), select.POLLIN)
        poller.register(self._wakeup_read, select.POLLIN)

        while True:
            ready = {fd for fd, _ in poller.poll()}

            if self._wakeup_read in ready:
                os.read(self._wakeup_read, _READ_BYTES)
                self._reap()

            if self._host.fileno() in ready:
                self._obey(*self._host.receive())

    def leave(self) -> None:
        """In a fork: releases everything that belongs to the loop."""
        # Not through `signal`, which converts the numbers to enums: in a fork that copies a hundred pages.
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        close_all([self._host.fileno(), self._wakeup_read, self._wakeup_write])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return

            if pid == 0:
                return

            self._note_end(pid, os.waitstatus_to_exitcode(status))
