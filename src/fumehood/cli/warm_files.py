"""The files of a warm run: the user's process reads and writes them, and not the process that has the sandbox.

Runs in the user's terminal, imported only by runs that name files. The warm process gets no other access: it receives
the content of the files that the command line names, and the files that it sends are written below the folder of
`--output` only, under the same bounds as without it (`fumehood.api.transfers`).
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal

from fumehood.api.transfers import Saved, save_files
from fumehood.bounds import MIB
from fumehood.cli.outputs import OutputRecord
from fumehood.errors import FileError
from fumehood.values.codec import read_value
from fumehood.values.results import Result
from fumehood.values.sandbox import FileInfo

# Sends a question to the other process, and returns its answer.
Ask = Callable[[Mapping[str, object]], Mapping[str, Any]]


class CarriedFiles:
    """The files that a run names.

    Args:
        paths: Files that go into the sandbox.
        folder: The folder to which its output files are copied; None: they are not.
        overwrite: Whether the output files may replace any existing file.

    Raises:
        OSError: A file cannot be read, or the folder cannot be made or written to.
    """

    def __init__(self, paths: Sequence[str], folder: str | None, *, overwrite: bool) -> None:
        self.saved: list[Saved] = []
        # Open as long as the process, which ends with the run.
        self._sources = [open(path, "rb") for path in paths]  # noqa: SIM115
        self._folder = folder
        self._record = None if folder is None else OutputRecord(folder, overwrite=overwrite)

        if folder is not None:
            os.makedirs(folder, exist_ok=True)

            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(folder)

    def save_pictures(self, results: Sequence[Result], stem: str) -> None:
        """Write pictures into the folder, or into the current directory if no folder was named.

        Args:
            results: The pictures.
            stem: The beginning of their names.
        """
        # Imported late: most runs make none.
        from fumehood.api.artifacts import save_pictures

        if self._record is None:
            self.saved += save_pictures(results, into=".", stem=stem)
            return

        may_replace = self._record.may_replace
        saved = save_pictures(results, into=self._folder or ".", stem=stem, may_replace=may_replace)
        self._record.add(saved)
        self.saved += saved

    def next_piece(self, position: int) -> str | None:
        """Return the next piece of the file at a position, as base64; None at its end."""
        piece = self._sources[position].read(MIB)
        return base64.b64encode(piece).decode() if piece else None

    def bring_back(self, found: Mapping[str, Sequence[object]], ask: Ask) -> None:
        """Copy files from the sandbox to the output folder.

        Args:
            found: The files to copy, by the directory of the sandbox that contains them.
            ask: Reads pieces of their content from the process that keeps the sandbox.
        """
        record = self._record
        assert record is not None, "a folder was named"
        assert self._folder is not None, "a folder was named"

        for root, entries in found.items():
            saving = save_files(
                _RemoteFiles(ask),
                [read_value(FileInfo, entry) for entry in entries],
                root=root,
                into=self._folder,
                overwrite=record.may_replace,
            )
            saved = asyncio.run(saving)
            record.add(saved)
            self.saved += saved

        record.save()


class _RemoteFiles:
    """The files of a sandbox that another process keeps."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def read(self, path: str, *, format: Literal["stream"]) -> AsyncGenerator[bytes, None]:
        """Return the content piece by piece."""
        return self._pieces(path)

    async def _pieces(self, path: str) -> AsyncGenerator[bytes, None]:
        question: Mapping[str, object] = {"fetch": path}

        while True:
            # Blocking is harmless here: this process does nothing else meanwhile.
            answer = self._ask(question)

            if "failed" in answer:
                raise FileError.from_errno(path=path, operation="read", errno_value=int(answer["failed"]))

            if answer["data"] is None:
                return

            yield base64.b64decode(answer["data"])
            question = {"more": path}
