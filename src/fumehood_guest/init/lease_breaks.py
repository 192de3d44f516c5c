"""Lease breaks: which leased file a process is about to change.

The kernel sends a signal when a lease is broken (man 2 fcntl, F_SETSIG); a signalfd also tells whose descriptor it was,
so that one opened file takes one check and not a check of every lease. The kernel falls back to SIGIO, which names no
descriptor, when its queue of signals is full: then every lease has to be checked. What is read here is a hint, since a
process of the guest may send the same signal: the lease itself decides.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from typing import List

from fumehood_jail import syscalls

# The first signals above SIGRTMIN are free: the C library keeps those below it for itself.
_SIGNAL = int(signal.SIGRTMIN)
# `struct signalfd_siginfo` (man 2 signalfd): ssi_signo, ssi_errno, ssi_code, ssi_pid, ssi_uid, ssi_fd, and the rest.
_RECORD = struct.Struct("=IiiIIi104x")
_MAX_RECORDS = 512


class LeaseBreaks:
    """The descriptors of leases that the kernel is breaking.

    Attributes:
        fd: Readable when a lease is being broken.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [_SIGNAL])
        self.fd = syscalls.signalfd(_SIGNAL)

    def announce(self, fd: int) -> None:
        """Makes the kernel report breaks of the lease on `fd` to this object."""
        fcntl.fcntl(fd, fcntl.F_SETSIG, _SIGNAL)

    def read(self) -> List[int]:
        """Returns the descriptors reported since the last call, without those in signals that the guest has sent."""
        try:
            content = os.read(self.fd, _RECORD.size * _MAX_RECORDS)
        except BlockingIOError:
            return []

        # The kernel's codes are positive; a process can only send others.
        return [fd for _, _, code, _, _, fd in _RECORD.iter_unpack(content) if code > 0]


def unblock() -> None:
    """Unblocks the signal, in a child that is to execute another program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [_SIGNAL])
