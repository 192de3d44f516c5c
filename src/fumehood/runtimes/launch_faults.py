"""Which error a failed step of a launch becomes: this machine lacks a layer, or it has nothing left for now.

The two must not be mistaken for each other: what a machine lacks it lacks tomorrow too, and whoever allows a weaker
level gets that from then on; what it has run out of comes back.
"""

from __future__ import annotations

import errno
import os

from fumehood.errors import IsolationUnavailableError, SandboxStartError
from fumehood.text import errno_text
from fumehood_jail.errors import JailError

# ENOSPC is not one of them: where user namespaces are forbidden, the kernel has no space for one.
_PASSING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR)


def launch_fault(step: str, number: int, detail: str, hint: str) -> SandboxStartError:
    """Returns the error for a step of the launch.

    Args:
        step: It.
        number: What the kernel answered; 0 when no system call failed.
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
    """Returns the error for a control group that could not be made, where others could be."""
    return SandboxStartError(
        step="make its control group", reason=str(error).partition("\n")[0], hint=error.hint
    )
