"""Failures of the host itself, as errors of the tree: no more files may be opened, a device does not answer.

Runs in the host process. It names a fault of the operating system once, at the border to the caller, and says whether
what was asked for may have been begun. It never hides a fault of our own: anything but an `OSError` stays what it is.
"""

from __future__ import annotations

import errno
from types import TracebackType

from fumehood.errors import FumehoodError, SandboxError
from fumehood.service_errors import OverloadedError
from fumehood.text import errno_text

# With these there is too much of something for now.
_FULL = {
    errno.EMFILE: "all files that the host may open are open",
    errno.ENFILE: "all files that the machine may open are open",
    errno.ENOMEM: "the host has no memory left",
    errno.EAGAIN: "the host may start no more processes or threads",
    errno.ENOSPC: "a disk of the host is full",
}


class naming_faults:  # noqa: N801 - said like a function, and used in a `with`
    """Turn a fault of the operating system into an error of the tree.

    Args:
        outcome_unknown: Whether what is done within may have been begun when it fails.
    """

    __slots__ = ("_outcome_unknown",)

    def __init__(self, *, outcome_unknown: bool) -> None:
        self._outcome_unknown = outcome_unknown

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError):
            return

        # A stream's other side and a wait's end say of themselves what they are.
        if isinstance(error, FumehoodError | ConnectionError | TimeoutError) or error.errno is None:
            return

        reason = _FULL.get(error.errno)

        if reason is not None:
            raise OverloadedError(
                reason=reason, retry_after_seconds=1, outcome_unknown=self._outcome_unknown
            ) from error

        raise SandboxError(
            f"the host could not go on: {errno_text(error.errno)}",
            hint="the sandboxes are still there unless a call says otherwise; see the host's log",
            outcome_unknown=self._outcome_unknown,
        ) from error
