"""The verbs of the port that save a sandbox and load one: what they are for every backend that has no shorter way.

Used on both sides of the port. All is done through the other verbs, so a backend that keeps sandboxes apart, or
counts what they use, does so here as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from os import PathLike
from typing import TYPE_CHECKING, cast

from fumehood.backends.save_requests import Loaded, LoadRequest

if TYPE_CHECKING:
    from fumehood.backends.base import Backend


class StateVerbs:
    """Saving and loading, for `Backend`."""

    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts, as one file, in pieces.

        That is its files, its environment, its records, and those variables that serialise. It waits for each
        context as executions do. Each file is as it was when it was read. Closing the iterator early leaves nothing
        behind.

        Raises:
            SaveError: A context does not answer; nothing of the sandbox was changed.
        """
        # Late: who never saves does not load what writes archives.
        from fumehood.saved.packing import pack

        return pack(cast("Backend", self), sandbox_id)

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state, which lies in a file of this machine.

        Whatever fails, no sandbox is left.

        Raises:
            SavedStateDamagedError: The file is not what was written.
            SavedStateVersionError: It is of a form that is not read here.
            LoadError: It cannot be carried out.
            SandboxStartError: See `Backend.create`.
        """
        from fumehood.saved.unpacking import unpack

        return await unpack(cast("Backend", self), request, archive)
