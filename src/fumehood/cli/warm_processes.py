"""Lists and ends the processes that keep sandboxes ready for `fumehood run`.

A process is found by the lock that it holds, in the folder that only its user can enter, and the kernel names the
holder: a pid stored in a file may be another process's by now. No lock is taken here, so that a process that is about
to start is not kept from it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
from glob import escape, glob

from fumehood.cli.warm import runtime_folder

# `struct flock` of Linux: type, whence, start, length, process.
_FLOCK = "hhlli4x"
_PATIENCE_SECONDS = 10.0


def warm_processes() -> list[int]:
    """Return the processes of this user that keep sandboxes ready, one for each set of settings.

    Raises:
        OSError: The folder of their sockets cannot be made, or is another user's.
    """
    locks = sorted(glob(os.path.join(escape(runtime_folder()), "run-*.sock.lock")))
    return [process for path in locks if (process := _holder(path)) is not None]


def stop_warm_processes() -> list[int]:
    """End the warm processes with all that runs in them, and wait until they have ended.

    Returns:
        The processes that have ended.

    Raises:
        OSError: The folder of their sockets cannot be made, or is another user's.
    """
    return [process for process in warm_processes() if _stop(process)]


def _holder(path: str) -> int | None:
    """Returns the process that holds a lock, or None."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        # A link in its place is no lock of such a process.
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None

        raise

    with open(descriptor, "rb+", buffering=0) as file:
        kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))

    # 0: the holder is in another process namespace, and cannot be reached from here.
    return process if kind != fcntl.F_UNLCK and process > 0 else None


def _stop(process: int) -> bool:
    """Ends a process; returns whether it existed."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False

    try:
        # Since the lock was looked at, the number may have become another process's.
        if process not in warm_processes():
            return False

        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(handle, signal_number)

            if select.select([handle], [], [], _PATIENCE_SECONDS)[0]:
                break
    except ProcessLookupError:
        # It has ended by itself.
        pass
    finally:
        os.close(handle)

    return True
