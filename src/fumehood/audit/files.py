"""Audit files: one for each sandbox, to which lines are added and never changed.

A line goes to the kernel at once, so it outlives this process; it is not forced onto the disk. A line that cannot be
written waits within a bound and is tried again with the next line, so a full disk that has space again loses nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from fumehood.bounds import MIB
from fumehood.errors import InvalidArgumentError
from fumehood.log import events

_MAX_WAITING_BYTES = 1 * MIB
SUFFIX = ".jsonl"


class AuditFolder:
    """The folder of audit files; made at once, readable only by its owner.

    Args:
        path: Its path.

    Raises:
        InvalidArgumentError: The folder cannot be made or written to.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser().absolute()

        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self._path, error.strerror or str(error)) from None

        if not os.access(self._path, os.W_OK | os.X_OK):
            raise _unusable(self._path, "it cannot be written to")

    def open(self, sandbox_id: str) -> AuditFile:
        """Makes the file of a sandbox.

        Raises:
            OSError: The file cannot be made.
        """
        return AuditFile(self._path / f"{sandbox_id}{SUFFIX}")


class AuditFile:
    """The file of one sandbox.

    Args:
        path: The path of the file, which must not exist.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd: int | None = os.open(path, flags, 0o600)
        self._waiting = bytearray()

    def add(self, line: str) -> None:
        """Adds a line; one that cannot be written now is written before the next one."""
        if self._fd is None:
            return

        is_late = bool(self._waiting)
        self._waiting += line.encode("ascii") + b"\n"
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except OSError as error:
            self._not_written(error, is_late)

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _not_written(self, error: OSError, is_late: bool) -> None:
        if len(self._waiting) > _MAX_WAITING_BYTES:
            events.AUDIT_FILE_ENDED.log(path=str(self._path), reason=error.strerror)
            self.close()
        elif not is_late:
            events.AUDIT_FILE_LATE.log(path=str(self._path), reason=error.strerror)


def _unusable(path: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="audit_folder", value=str(path), allowed=f"a folder that can be written to ({reason})"
    )
