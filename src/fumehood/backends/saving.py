"""The verbs of the port that save a sandbox and load one.

Used on both sides of the port. Both need what only the engine has, all files at one moment and the records: a backend
that has none of its own asks the one that has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from os import PathLike

from fumehood.backends.save_requests import Loaded, LoadRequest


class StateVerbs(ABC):
    """Saving and loading, for `Backend`."""

    @abstractmethod
    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts, as one file, in pieces.

        That is its files, its environment, its records, and those variables that serialise. It waits until no context
        runs anything, as executions do; variables and files are of that one moment, whatever goes on afterwards.
        Closing the iterator early leaves nothing behind.

        Raises:
            SaveError: A context does not answer, or the files cannot be kept; nothing of the sandbox was changed.
        """

    @abstractmethod
    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state, which lies in a file of this machine.

        Its records begin with the cells that were saved. Whatever fails, no sandbox is left.

        Raises:
            SavedStateDamagedError: The file is not what was written.
            SavedStateVersionError: It is of a form that is not read here.
            LoadError: It cannot be carried out.
            SandboxStartError: See `Backend.create`.
        """
