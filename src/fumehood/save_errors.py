"""What goes wrong with saving and loading: the branch of the error tree for saved states.

Used by all host code and by callers. Raised where a sandbox is saved or loaded, and raised again, as the same class,
by the client that receives it.
"""

from __future__ import annotations

from fumehood.errors import SandboxError
from fumehood.text import visible_line

_MAX_CHARACTERS = 500


class SaveError(SandboxError):
    """A sandbox could not be saved; it is as it was, and nothing was stored."""

    code = "save"

    def __init__(self, *, reason: str, hint: str = "") -> None:
        self.reason = reason[:_MAX_CHARACTERS]
        super().__init__(f"the sandbox cannot be saved: {visible_line(self.reason)}", hint=hint)


class LoadError(SandboxError):
    """A saved state could not be loaded; what was begun of the new sandbox was killed."""

    code = "load"

    def __init__(self, *, reason: str, hint: str = "") -> None:
        self.reason = reason[:_MAX_CHARACTERS]
        super().__init__(f"the saved state cannot be loaded: {visible_line(self.reason)}", hint=hint)


class SavedStateDamagedError(LoadError, ValueError):
    """A saved state is not what was written, or is no saved state at all."""

    code = "saved_state_damaged"

    def __init__(self, *, part: str, reason: str) -> None:
        self.part = part[:_MAX_CHARACTERS]
        super().__init__(
            reason=f"{self.part}: {reason}",
            hint="it was damaged or changed since it was saved: use another copy",
        )


class SavedStateVersionError(LoadError, ValueError):
    """A saved state has a format that this version of fumehood does not read."""

    code = "saved_state_version"

    def __init__(self, *, found: str, known: str) -> None:
        self.found = found[:_MAX_CHARACTERS]
        self.known = known
        super().__init__(
            reason=f"it has {self.found}, and this version of fumehood reads {known}",
            hint="load it with a newer fumehood, or save it again with this one",
        )
