"""What goes wrong with forks of a sandbox: a branch of the error tree.

Used by all host code and by callers. Raised where a sandbox lives, and raised again, as the same class, by the
client that receives it. Whatever of this is raised, the sandbox that was to be forked is as it was.
"""

from __future__ import annotations

import errno
import os

from fumehood.errors import SandboxError
from fumehood.text import visible_line

_NO_ROOM = (
    "free memory or disk in the sandbox, kill sandboxes that you no longer need, or ask for fewer forks"
)


class ForkError(SandboxError):
    """A sandbox could not be forked; it is as it was, and no fork of this call is left.

    Attributes:
        step: What was being done.
        reason: What went wrong.
    """

    code = "fork_failed"

    def __init__(self, *, step: str, reason: str, hint: str = "") -> None:
        self.step = step
        self.reason = reason
        super().__init__(
            f"the sandbox was not forked: {visible_line(step)}: {visible_line(reason)}",
            hint=hint or "the sandbox is as it was; try again, or go on without a fork",
        )

    @staticmethod
    def from_errno(step: str, number: int) -> ForkError:
        """Return the error for the number that a call has failed with."""
        no_room = number in (errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
        return ForkError(
            step=step,
            reason=os.strerror(number) if number else "refused",
            hint=_NO_ROOM if no_room else "",
        )


class ForkUnavailableError(ForkError):
    """Sandboxes of this level of isolation cannot be forked; nothing was begun.

    Attributes:
        level: The level of isolation of the sandbox.
    """

    code = "fork_unavailable"

    def __init__(self, *, level: str) -> None:
        self.level = level
        super().__init__(
            step="look at what it is",
            reason=f"a sandbox of the isolation level {level!r} has no forks",
            hint="make the sandbox without isolation='landlock-only', where `fumehood doctor` finds namespaces; or "
            "start another one, and give it the files",
        )


class ForkDepthError(ForkError):
    """Forks of forks were nested too deeply: each stands inside the one before.

    Attributes:
        generation: How many forks lie between this sandbox and one that is none.
        maximum: How many there may be.
    """

    code = "fork_too_deep"

    def __init__(self, *, generation: int, maximum: int) -> None:
        self.generation = generation
        self.maximum = maximum
        super().__init__(
            step="a fork of a fork",
            reason=f"it is of generation {generation}, and no more than {maximum} are possible",
            hint="fork from one of an earlier generation, or start again in a sandbox that is no fork",
        )
