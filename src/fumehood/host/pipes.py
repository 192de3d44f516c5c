"""Pipes whose one end goes to a guest.

Runs in the host process. A pipe is a file with an owner, and the guest is another user: without the mode set
here, what a guest opens as /dev/stdout or /proc/self/fd/1 would be refused.
"""

from __future__ import annotations

import os


def open_pipe() -> tuple[int, int]:
    """Makes a pipe that a guest can open anew through /proc; returns its read end and its write end."""
    read_end, write_end = os.pipe()
    os.fchmod(write_end, 0o666)
    return read_end, write_end
