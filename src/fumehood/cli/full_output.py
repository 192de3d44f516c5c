"""Handles a full disk behind standard output: the message for the user, and the end of all further writes.

It is imported at the start of every run that a warm process serves, and imports next to nothing.
"""

from __future__ import annotations

import errno
import os
import sys

# EX_IOERR of sysexits.h.
EXIT_FILE_FAILED = 74
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason_of_full_output(error: OSError) -> str:
    """Return the message for an error that means standard output has no space left; empty for any other error."""
    is_full = error.filename is None and error.errno in _FULL
    return f"standard output: {error.strerror}" if is_full else ""


def give_up_output() -> None:
    """Redirect standard output to /dev/null: the interpreter would try to flush into the full file again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
