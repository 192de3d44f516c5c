"""The one error of the jail: a step of the set-up failed, and why.

Used in every process that builds a jail (launcher, jail init, zygote, init) and by the probe. Host code translates it
into its own error tree. It carries plain fields, so that it can cross a pipe as JSON; it never holds
another exception's objects.
"""

from __future__ import annotations

import errno as errno_module
import os


class JailError(Exception):
    """A step of building a jail failed.

    Attributes:
        step: The step that failed, as one word of the launch list (`"map-ids"`, `"seccomp"`).
        errno: The errno of the kernel; 0 when no system call failed.
        detail: The operation that failed, with the values.
        hint: How to make it possible; empty when nothing can be said.
    """

    def __init__(self, step: str, errno: int, detail: str, hint: str = "") -> None:
        super().__init__(step, errno, detail, hint)
        self.step = step
        self.errno = errno
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        message = f"{self.step}: {self.detail}"
        if self.errno:
            name = errno_module.errorcode.get(self.errno, str(self.errno))
            message = f"{message}: {os.strerror(self.errno)} ({name})"

        return f"{message}\nhint: {self.hint}" if self.hint else message
