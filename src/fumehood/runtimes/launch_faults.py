"""Maps a failed step of a launch to an error: this machine lacks a layer, or is out of resources for now.

The two must not be confused: a missing layer is missing tomorrow too, and a caller that allows a weaker level gets that
from then on; exhausted resources come back.
"""

from __future__ import annotations

import errno
import os

from fumehood.errors import IsolationUnavailableError, SandboxStartError
from fumehood.text import errno_text
from fumehood_jail.errors import JailError

# ENOSPC is not one of them: it is what the kernel returns where user namespaces are forbidden.
_PASSING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR)


def launch_fault(step: str, number: int, detail: str, hint: str) -> SandboxStartError:
    """Returns the error for a failed step of the launch.

    Args:
        step: Its name.
        number: The errno; 0 when no system call failed.
        detail: What was tried.
        hint: How to make it possible, where that is known.
    """
    reason = detail

    if number and os.strerror(number) not in detail:
        reason += f": {errno_text(number)}"

    if number in _PASSING:
        return SandboxStartError(
            step=step, reason=reason, hint="it has nothing left for now: try again later"
        )

    hint = hint or "run `fumehood doctor` to see what this machine allows"
    return IsolationUnavailableError(layer=step, reason=reason, how_to_get_it=hint)


def cgroup_fault(error: JailError) -> SandboxStartError:
    """Returns the error for a control group that could not be made although the driver works."""
    return SandboxStartError(
        step="make its control group", reason=str(error).partition("\n")[0], hint=error.hint
    )
