"""Files in the words of a server's routes.

Runs in the process that asks one. Translation only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fumehood.backends.http_paths import sandbox_path
from fumehood.backends.requests import (
    FileCall,
    ListFiles,
    MakeDir,
    RemoveFile,
    RenameFile,
    StatFile,
    WatchFiles,
)

Ask = Callable[..., Awaitable[Any]]


async def call_files(ask: Ask, sandbox_id: str, call: FileCall) -> list[object]:
    """Asks a server to describe, list, make, remove or rename; returns what it answered, each a `FileInfo` as data."""
    place = sandbox_path(sandbox_id, "files")

    match call:
        case StatFile(path=path):
            return [await ask("GET", f"{place}/info", params={"path": path})]
        case ListFiles(path=path, depth=depth):
            return list((await ask("GET", place, params={"path": path, "depth": depth}))["items"])
        case MakeDir(path=path):
            return [await ask("POST", f"{place}/directories", json={"path": path})]
        case RemoveFile(path=path):
            await ask("DELETE", place, params={"path": path})
            return []
        case RenameFile(source=source, destination=destination):
            body = {"source": source, "destination": destination}
            return [await ask("POST", f"{place}/rename", json=body)]


def watch_query(request: WatchFiles) -> dict[str, str]:
    """Returns the query that asks for a watch."""
    query = {
        "path": request.path,
        "recursive": str(request.recursive).lower(),
        "entries": str(request.entries).lower(),
    }
    return {**query, "name": request.name} if request.name else query


def metadata_headers(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the headers that give a file its metadata."""
    return {f"x-metadata-{name}": value for name, value in (metadata or {}).items()}
