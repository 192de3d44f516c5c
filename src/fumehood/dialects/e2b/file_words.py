"""The messages of `filesystem.Filesystem`, from the port's values.

Pure functions.
"""

from __future__ import annotations

from typing import Any

from fumehood.values.sandbox import FileChange, FileInfo

_TYPES = {
    "file": "FILE_TYPE_FILE",
    "dir": "FILE_TYPE_DIRECTORY",
    "symlink": "FILE_TYPE_SYMLINK",
    "other": "FILE_TYPE_UNSPECIFIED",
}


def entry_data(info: FileInfo) -> dict[str, Any]:
    """Returns the description of a path."""
    data: dict[str, Any] = {
        "name": info.name,
        "type": _TYPES[info.type],
        "path": info.path,
        # Protobuf's JSON writes numbers of 64 bits as text.
        "size": str(info.size_bytes),
        "mode": info.mode,
        "permissions": info.permissions,
        "owner": info.owner,
        "group": info.group,
        "isSymlink": info.symlink_target is not None,
    }

    if info.modified_at is not None:
        data["modifiedTime"] = info.modified_at.isoformat().replace("+00:00", "Z")

    if info.symlink_target is not None:
        data["symlinkTarget"] = info.resolved_target or info.symlink_target

    if info.metadata:
        data["metadata"] = dict(info.metadata)

    return data


def written_data(info: FileInfo) -> dict[str, Any]:
    """Returns a file that was written, as the answer to an upload has it."""
    data: dict[str, Any] = {"path": info.path, "name": info.name, "type": "file"}
    return {**data, "metadata": dict(info.metadata)} if info.metadata else data


def change_data(change: FileChange) -> dict[str, Any]:
    """Returns a change below a watched directory."""
    data: dict[str, Any] = {"name": change.name, "type": f"EVENT_TYPE_{change.kind.upper()}"}
    return data if change.entry is None else {**data, "entry": entry_data(change.entry)}
