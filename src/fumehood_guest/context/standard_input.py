"""The standard input of one execution: descriptor 0 and sys.stdin, if the host has sent content for it.

Runs in a context. The content is in a memory file, so that Python, C code and child processes read it, each from where
the last one stopped, up to its end. After the execution descriptor 0 is empty again.
"""

from __future__ import annotations

import os
import sys
from typing import Optional


class BorrowedInput:
    """Standard input that holds during one execution.

    Args:
        content: Its content; None changes nothing.
    """

    def __init__(self, content: Optional[bytes]) -> None:
        self._content = content
        self._is_taken = False

    def take(self) -> None:
        """Installs the content as standard input."""
        if self._content is None:
            return

        self._is_taken = True
        fd = os.memfd_create("stdin")

        with open(fd, "wb", closefd=False) as file:
            file.write(self._content)

        os.lseek(fd, 0, os.SEEK_SET)
        _put(fd)

    def give_back(self) -> None:
        """Makes standard input empty again."""
        if self._is_taken:
            _put(os.open(os.devnull, os.O_RDWR))
            self._is_taken = False


def _put(fd: int) -> None:
    """Makes a descriptor the standard input, and discards what was buffered of the previous one."""
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)

    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
