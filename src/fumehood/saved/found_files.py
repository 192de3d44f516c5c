"""Selects the files of a guest's list that a saved state can hold, and makes their entries in the manifest.

Pure functions. A false list spoils only the guest's own saved state.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Mapping
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.saved.guest_answers import FoundFile
from fumehood.saved.manifest import is_writable_place
from fumehood.values.checks import check_path
from fumehood.values.saved_state import SavedFile, SavedFileType, SavedPart


def found_of(entry: Mapping[str, Any], names: dict[int, str]) -> FoundFile | None:
    """Returns what init says of a file, as a context would say it; None: it is neither file nor directory nor link.

    Args:
        entry: What init says, within its message table.
        names: The first name of each file that has several, by its number; grows.
    """
    mode, path = entry["mode"], entry["path"]
    kind: SavedFileType = "file"
    target = ""

    if stat.S_ISDIR(mode):
        kind = "dir"
    elif stat.S_ISLNK(mode):
        kind, target = "symlink", entry["target"]
    elif not stat.S_ISREG(mode):
        return None
    elif entry["links"] > 1 and names.setdefault(entry["inode"], path) != path:
        kind, target = "hardlink", names[entry["inode"]]

    return FoundFile(
        path=path,
        type=kind,
        mode=stat.S_IMODE(mode),
        modified_ns=entry["modified_ns"],
        size_bytes=entry["size_bytes"],
        target=target,
    )


def why_not(file: FoundFile) -> str:
    """Says why a file cannot be named, or is not where files can be; empty where it can."""
    try:
        check_path("path", file.path)

        if file.type in ("symlink", "hardlink"):
            check_path("target", file.target)
    except InvalidArgumentError:
        return "its name, or where it leads, is no text"

    if file.path != posixpath.normpath(file.path) or not is_writable_place(file.path):
        return "it does not lie in a writable place"

    return ""


def entry_of(file: FoundFile, content: SavedPart | None) -> SavedFile:
    """Returns what is written of a file in the manifest."""
    return SavedFile(
        path=file.path,
        type=file.type,
        mode=file.mode & 0o7777,
        modified_ns=max(-(2**62), min(file.modified_ns, 2**62)),
        content=content,
        target=file.target if content is None else "",
    )
