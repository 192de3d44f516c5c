"""Files that a call has made in a sandbox, copied to a folder of this machine after the call.

The guest chose names and sizes: `save_files` bounds both, and leaves out hidden files. A file of the user's is never
replaced, and one that was copied before only while it is unchanged. The answer names the copies, so that a model can
say where they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from fumehood import AsyncSandbox, FileError, FumehoodError
from fumehood.api.transfers import Saved, save_files
from fumehood.llm.file_changes import FileChanges
from fumehood.llm.result import ToolFile
from fumehood.text import visible_line
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

_MAX_SAID = 10


@dataclass(slots=True)
class Outputs:
    """A folder of this machine for files that sandboxes have made.

    Attributes:
        folder: The folder.
    """

    folder: str
    _changes: dict[str, FileChanges] = field(default_factory=dict)
    _written: dict[str, str] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self, sandbox: AsyncSandbox) -> None:
        """Record the files that a sandbox begins with; they are the user's own and are not copied."""
        changes = self._changes[sandbox.id] = FileChanges()
        await changes.look(sandbox)

    async def bring(self, sandbox: AsyncSandbox) -> str:
        """Copy new and changed files from the sandbox to the user's folder; return a line about them for the model."""
        # Calls that end at once may have made files of the same name.
        async with self._turn:
            return await self._bring(sandbox)

    async def _bring(self, sandbox: AsyncSandbox) -> str:
        if sandbox.id not in self._changes:
            # Another program has made the file: it is not an output of this conversation.
            await self.begin(sandbox)
            return ""

        found = await self._changes[sandbox.id].look(sandbox)
        saved = [one for root in (DATA_PATH, HOME_PATH) for one in await self._save(sandbox, root, found)]
        brought = [os.path.relpath(one.path, self.folder) for one in saved if one.path]
        lines = [f"[brought to the user: {_listed(brought)}]"] if brought else []
        lines += [
            f"[not brought to the user: {visible_line(one.source)}: {visible_line(one.skipped)}]"
            for one in [one for one in saved if one.skipped][:_MAX_SAID]
        ]
        return "\n".join(lines)

    async def _save(self, sandbox: AsyncSandbox, root: str, found: Sequence[ToolFile]) -> list[Saved]:
        entries = []

        for file in found:
            if file.path.startswith(f"{root}/"):
                try:
                    entries.append(await sandbox.files.get_info(file.path))
                except FileError:
                    # Removed since it was listed.
                    continue

        try:
            saved = await save_files(
                sandbox.files, entries, root=root, into=self.folder, overwrite=self._is_ours
            )
        except FumehoodError as error:
            return [Saved(source=root, skipped=error.message)]

        self._written.update({one.path: one.sha256 for one in saved if one.path})
        return saved

    def _is_ours(self, path: str) -> bool:
        known = self._written.get(path)

        if known is None or os.path.islink(path) or not os.path.isfile(path):
            return False

        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == known


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(visible_line(name) for name in names[:_MAX_SAID])
    more = len(names) - _MAX_SAID
    return f"{shown} and {more:,} more" if more > 0 else shown
