"""`/mnt/data` of one run: writes files of storage sessions into it, and stores the files that the run has left.

Names and content of stored files come from a guest: names are checked before they are recorded, and bytes go to the
store as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fumehood.dialects.librechat.bodies import FileRef, is_safe_name
from fumehood.dialects.librechat.stored_files import NewFile, Shelf, produced
from fumehood.errors import FileError, QuotaError, RequestTooLargeError
from fumehood.server.json_bodies import refused
from fumehood.server.programs import ProgramSandbox
from fumehood.storage.files import StoredFile
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.requests import ListFiles, ReadFile
from fumehood.values.sandbox import FileInfo

_DEEPEST = 64
_MAX_OUTPUTS = 200


@dataclass(frozen=True, slots=True)
class _Input:
    stored: StoredFile
    digest: bytes
    ref: FileRef | None


@dataclass(slots=True, kw_only=True)
class RunOutputs:
    """The files that a run has left.

    Attributes:
        files: Its files, as the answer names them.
        deleted: Names of input files that do not exist any more.
        failed: How many of its files could not be stored.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: int = 0

    def words(self) -> dict[str, Any]:
        """Returns the fields of an answer."""
        words: dict[str, Any] = {"files": self.files}

        if self.deleted:
            words["deleted_files"] = self.deleted

        if self.failed:
            delivered = sum("inherited" not in file for file in self.files)
            words["artifact_delivery"] = {
                "code": "artifact_delivery_failed",
                "status": "partial" if delivered else "failed",
                "attempted": delivered + self.failed,
                "delivered": delivered,
                "failed": self.failed,
            }

        return words


class Workspace:
    """The files of one run.

    Args:
        shelf: The caller's files.
        session_id: The storage session of the files that the run makes.
    """

    def __init__(self, shelf: Shelf, session_id: str) -> None:
        self.session_id = session_id
        self._shelf = shelf
        self._inputs: dict[str, _Input] = {}

    async def find(
        self, refs: Sequence[FileRef], session_id: str | None
    ) -> list[tuple[str, StoredFile, FileRef | None]]:
        """Returns the files that a call names, or those of the session that it continues.

        Raises:
            NotThereError: A file does not exist.
        """
        found: list[tuple[str, StoredFile, FileRef | None]] = []

        for ref in refs:
            stored = await self._shelf.get(ref.id, ref.session_id)
            await self._shelf.keep(stored.session_id)
            found.append((ref.name or stored.name, stored, ref))

        if not refs and session_id is not None:
            found += [(stored.name, stored, None) for stored in await self._shelf.list(session_id)]

        if any(not is_safe_name(name) for name, _, _ in found):
            raise refused("files.name", [name for name, _, _ in found][:5], "relative names without `..`")

        return found

    async def put_in(
        self, bench: ProgramSandbox, files: list[tuple[str, StoredFile, FileRef | None]]
    ) -> None:
        """Writes the input files into the sandbox."""
        for name, stored, ref in files:
            digest = hashlib.sha256()
            content = await self._shelf.content(stored)

            async def counted(content: Any = content, digest: Any = digest) -> AsyncGenerator[bytes, None]:
                async for piece in content:
                    digest.update(piece)
                    yield piece

            await bench.backend.write(bench.sandbox_id, f"{DATA_PATH}/{name}", counted())
            self._inputs[name] = _Input(stored, digest.digest(), ref)

    async def take_out(self, bench: ProgramSandbox) -> RunOutputs:
        """Stores the files that the run created or changed; returns these, the unchanged and the removed ones."""
        outcome = RunOutputs()
        listed = await bench.backend.file_call(bench.sandbox_id, ListFiles(path=DATA_PATH, depth=_DEEPEST))
        there = {
            info.path.removeprefix(f"{DATA_PATH}/"): info
            for info in listed
            if info.type == "file"
            and info.symlink_target is None
            and "__pycache__" not in info.path.split("/")
        }
        outcome.deleted = [name for name in self._inputs if name not in there]
        made = 0

        for name, info in there.items():
            known = self._inputs.get(name)

            if known is not None and await _is_unchanged(bench, info, known):
                words = produced(known.stored, known.ref.echoed if known.ref else None)
                words.pop("modified_from", None)
                outcome.files.append(
                    {**words, "name": name, "path": f"{DATA_PATH}/{name}", "inherited": True}
                )
                continue

            made += 1
            stored = await self._keep(bench, name, info, known) if made <= _MAX_OUTPUTS else None

            if stored is None:
                outcome.failed += 1
            else:
                outcome.files.append(produced(stored))

        return outcome

    async def _keep(
        self, bench: ProgramSandbox, name: str, info: FileInfo, known: _Input | None
    ) -> StoredFile | None:
        if not is_safe_name(name):
            return None

        file = NewFile(
            session_id=self.session_id,
            name=name,
            details={"kind": "output"},
            source=known.stored if known else None,
        )
        try:
            return await self._shelf.put(file, _pieces(bench, info.path))
        except (FileError, QuotaError, RequestTooLargeError):
            return None


async def _is_unchanged(bench: ProgramSandbox, info: FileInfo, known: _Input) -> bool:
    if info.size_bytes != known.stored.size_bytes:
        return False

    digest = hashlib.sha256()
    try:
        async for piece in _pieces(bench, info.path):
            digest.update(piece)
    except FileError:
        return False

    return digest.digest() == known.digest


async def _pieces(bench: ProgramSandbox, path: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(bench.backend.read(bench.sandbox_id, ReadFile(path=path))) as pieces:
        async for piece in pieces:
            yield piece
