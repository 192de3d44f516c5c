"""Finds the files of a sandbox to publish: the named ones, or new ones in /mnt/data, and pictures.

Used in the user's process, over the public sandbox only. Names, sizes and times come from a guest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from fumehood.api.transfers import list_tree
from fumehood.storage.artifact_files import PublishedFile, mime_of, shown_name
from fumehood.values.execution import Execution
from fumehood.values.sandbox import FileInfo

if TYPE_CHECKING:
    from fumehood.api.async_sandbox import AsyncSandbox

PublishedFiles: TypeAlias = list[PublishedFile]
# The time and the size of a file when it was published.
Version: TypeAlias = tuple[datetime | None, int]

ARTIFACTS_FOLDER = "/mnt/data"
_PICTURES = ("image/png", "image/jpeg", "application/pdf")


async def find_files(sandbox: AsyncSandbox, paths: Iterable[str] | None) -> list[FileInfo]:
    """Return the named files, or those of /mnt/data without links and hidden ones."""
    if isinstance(paths, str):
        # A str is an iterable of its letters.
        paths = [paths]

    if paths is not None:
        return [await sandbox.files.get_info(path) for path in paths]

    entries = await list_tree(sandbox.files, ARTIFACTS_FOLDER)
    return [entry for entry in entries if entry.type == "file" and entry.symlink_target is None]


def is_new(entry: FileInfo, versions: Mapping[str, Version]) -> bool:
    """Return whether a file has changed since it was published last."""
    return versions.get(entry.path) != (entry.modified_at, entry.size_bytes)


def pictures_of(execution: Execution | None) -> list[tuple[bytes, str]]:
    """Return the pictures of an execution, each with its type."""
    pictures: list[tuple[bytes, str]] = []

    for result in () if execution is None else execution.results:
        # Only the best format of each.
        best = next((mime for mime in _PICTURES if mime in result.parts), None)

        if best is not None:
            pictures.append((result.parts[best], best))

    return pictures


def left_out(entry: FileInfo, why: str, others: int = 0) -> PublishedFile:
    """Return a file of a sandbox as one that was not published."""
    return PublishedFile(
        name=shown_name(name_of(entry)),
        mime=mime_of(entry.name),
        size_bytes=entry.size_bytes,
        path=entry.path,
        skipped=f"{why}; {others} more were left out" if others else why,
    )


def name_of(entry: FileInfo) -> str:
    """Return the name of a file: its path below /mnt/data, or its last part."""
    name = entry.path.removeprefix(f"{ARTIFACTS_FOLDER}/")
    return entry.name if name == entry.path else name
