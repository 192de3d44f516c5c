"""Standard output that has no room: what is said of it, and that nothing more is written to it.

Runs in the user's terminal. It is imported at the start of every run that a warm process serves, and imports next to
nothing.
"""

from __future__ import annotations

import errno
import os
import sys

# EX_IOERR of sysexits.h.
EXIT_FILE_FAILED = 74
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason_of_full_output(error: OSError) -> str:
    """Return why an error without the name of a file says that what was printed has no room; empty: it does not."""
    is_full = error.filename is None and error.errno in _FULL
    return f"standard output: {error.strerror}" if is_full else ""


def give_up_output() -> None:
    """Lead standard output nowhere: the interpreter would try to flush into it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
