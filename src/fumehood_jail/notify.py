"""Notify: the listener of a system call filter, through which one process answers calls of others.

Runs in the host process, with listeners that contexts have handed over before user code ran in them. A call that the
filter reports blocks until it is answered here. Only its registers are used; memory behind a pointer may change at any
time and is never read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
from typing import NamedTuple

# include/uapi/linux/seccomp.h: struct seccomp_notif, seccomp_notif_resp and seccomp_notif_addfd, and the ioctls that
# carry them.
_CALL = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_GIFT = struct.Struct("=QIIII")
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_ADD_FD = 0x40182103
_CONTINUE = 1
_LINK = "anon_inode:seccomp notify"


class NotifiedCall(NamedTuple):
    """A reported call that waits for its answer.

    `pid` is the number of the calling process in this process's namespace; that process is blocked, but may be killed
    and its number reused at any time.
    """

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]


def is_listener(fd: int) -> bool:
    """Whether a received descriptor is a seccomp listener; any other kind could block or give false answers."""
    return os.readlink(f"/proc/self/fd/{fd}") == _LINK


def wait(fd: int) -> None:
    """Returns when a call is pending, or when no process is left under the filter."""
    _poll(fd, None)


def receive(fd: int) -> NotifiedCall | None:
    """Takes the next call without waiting; None if there is none, or its caller was interrupted or has ended."""
    # The ioctl blocks despite O_NONBLOCK, and before Linux 6.11 forever where no process is left under the filter.
    if not _poll(fd, 0) & select.POLLIN:
        return None

    buffer = bytearray(_CALL.size)
    try:
        fcntl.ioctl(fd, _RECEIVE, buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None

        raise

    id_, pid, _flags, number, _arch, _instruction, *arguments = _CALL.unpack(buffer)
    return NotifiedCall(id_, pid, number, tuple(arguments))


def is_unused(fd: int) -> bool:
    """Whether the last process under the filter has ended."""
    return bool(_poll(fd, 0) & select.POLLHUP)


def refuse(fd: int, call: NotifiedCall) -> None:
    """Answers a call with EPERM."""
    _answer(fd, _ANSWER.pack(call.id, 0, -errno.EPERM, 0))


def permit(fd: int, call: NotifiedCall) -> None:
    """Lets the kernel carry out the call; its register arguments are those that were reported."""
    _answer(fd, _ANSWER.pack(call.id, 0, 0, _CONTINUE))


def give(fd: int, call: NotifiedCall, gift: int) -> int:
    """Installs a descriptor in the waiting process, close-on-exec; returns its number there (Linux 5.9).

    Raises:
        OSError: The process has no free descriptor, no longer waits, or has ended.
    """
    number: int = fcntl.ioctl(fd, _ADD_FD, bytearray(_GIFT.pack(call.id, 0, gift, 0, os.O_CLOEXEC)))
    return number


def _poll(fd: int, timeout_milliseconds: int | None) -> int:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return sum(events for _, events in poller.poll(timeout_milliseconds))


def _answer(fd: int, answer: bytes) -> None:
    try:
        fcntl.ioctl(fd, _SEND, bytearray(answer))
    except OSError as error:
        # The calling process was interrupted, or has ended.
        if error.errno != errno.ENOENT:
            raise
