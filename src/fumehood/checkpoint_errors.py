"""What goes wrong with going back and forking: the branch of the error tree for checkpoints.

Used by all host code and by callers. Raised where a sandbox lives, and raised again, as the same class, by the
client that receives it.
"""

from __future__ import annotations

import errno
import os

from fumehood.errors import SandboxError
from fumehood.text import visible_line

_NEEDS_NAMESPACES = (
    "make the sandbox without isolation='landlock-only', where `fumehood doctor` finds namespaces; transactions, "
    "reported changes and judged programs need them too"
)
_NO_ROOM = "free memory or disk in the sandbox, drop checkpoints, or give it larger limits"


class CheckpointError(SandboxError):
    """A checkpoint could not be made, or could not be gone back to; the sandbox is as it was."""

    code = "checkpoint"

    def __init__(self, *, reason: str, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"the checkpoint failed: {visible_line(reason)}", hint=hint)

    @staticmethod
    def from_errno(number: int, what: str = "") -> CheckpointError:
        """Return the error for the number that a call inside the guest failed with."""
        name = os.strerror(number) if number else "refused"
        no_room = number in (errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
        reason = f"{what}: {name}" if what not in ("", name) else name
        return CheckpointError(reason=reason, hint=_NO_ROOM if no_room else "")


class CheckpointUnavailableError(CheckpointError):
    """Sandboxes of this level of isolation have no checkpoints, and nothing that needs one; nothing was begun.

    Attributes:
        level: The level of isolation of the sandbox.
    """

    code = "checkpoint_unavailable"

    def __init__(self, *, level: str) -> None:
        self.level = level
        super().__init__(
            reason=f"a sandbox of the isolation level {level!r} has none", hint=_NEEDS_NAMESPACES
        )


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No checkpoint has this id or name."""

    code = "checkpoint_not_found"

    def __init__(self, *, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            reason=f"there is no {checkpoint_id!r}",
            hint="`list_checkpoints()` shows which there are; the oldest is dropped when there are too many",
        )


class CheckpointLostError(CheckpointError):
    """A checkpoint is gone: code in the sandbox, or a lack of memory, has ended its process."""

    code = "checkpoint_lost"

    def __init__(self, *, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            reason=f"{checkpoint_id!r} has ended: code in the sandbox has killed it, or memory ran out",
            hint="the sandbox is as it was; go back to another checkpoint, or go on",
        )
