"""Reads files of /proc, as bytes and without file objects.

Runs in init and in contexts. Each sandbox has an init of its own, whose memory is shared with all others until it is
written to: a text file loads a codec and touches about a hundred pages, which are copied then.
"""

from __future__ import annotations

import os

_PIECE_BYTES = 1 << 14


def read_proc(path: str) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: The file cannot be read, or the process that it describes has ended.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = piece = os.read(fd, _PIECE_BYTES)

        while piece:
            piece = os.read(fd, _PIECE_BYTES)
            content += piece

        return content
    finally:
        os.close(fd)
