"""The files of a sandbox that are published: which ones, with what names and types.

Name, suffix, content, size and time come from the guest, and are hostile: a name becomes one harmless part of a key, a
type is one of a fixed list, and only pictures are ever shown in place; all else is sent as an attachment, so that no
browser runs it under the store's address.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from fumehood.api.transfers import list_tree
from fumehood.text import visible_line
from fumehood.values.execution import Execution
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.published_file import PublishedFile
from fumehood.values.sandbox import FileInfo

if TYPE_CHECKING:
    from fumehood.api.async_sandbox import AsyncSandbox

# Types that a browser may show in place; none of these can hold a script.
_SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_ANY = "application/octet-stream"
_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "log": "text/plain",
    "py": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "html": "text/html",
    "htm": "text/html",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "ndjson": "application/x-ndjson",
    "ipynb": "application/x-ipynb+json",
    "xml": "application/xml",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "zip": "application/zip",
    "gz": "application/gzip",
    "tar": "application/x-tar",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "mp4": "video/mp4",
}
_KNOWN = frozenset(_TYPES.values())
# A browser could run code in these, so the store sends them as plain bytes.
_ACTIVE = frozenset({"text/html", "image/svg+xml", "application/xml", "application/pdf"})

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_MAX_STEM_CHARACTERS = 80
_MAX_ENDING_CHARACTERS = 16
_MAX_NAME_CHARACTERS = 255


def shown_name(name: str) -> str:
    """Return a guest's name as one bounded line; slashes stay."""
    return visible_line(name, max_characters=_MAX_NAME_CHARACTERS) or "file"


def mime_of(name: str, given: str | None = None) -> str:
    """Return the type of a file: the given one if it is in the list, else by the suffix of its name."""
    if given is not None:
        bare = given.partition(";")[0].strip().lower()
        return bare if bare in _KNOWN else _ANY

    return _TYPES.get(name.rpartition(".")[2].lower(), _ANY)


def headers_of(name: str, mime: str) -> dict[str, str]:
    """Return the headers with which a store sends a file."""
    kind = "inline" if mime in _SHOWN else "attachment"
    plain = key_name(name)
    full = quote(shown_name(posixpath.basename(name)), safe="")
    return {
        "Content-Type": _ANY if mime in _ACTIVE else mime,
        "Content-Disposition": f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{full}",
        "Cache-Control": "private",
    }


def key_of(group: str, name: str) -> str:
    """Return a new key for a file of a group: with 128 random bits, so that it cannot be guessed."""
    return f"{group_of(group)}/{secrets.token_hex(16)}/{key_name(name)}"


def group_of(group: str) -> str:
    """Return the part of a key that all files of a group share; it does not show the name of the group."""
    return hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def key_name(name: str) -> str:
    """Return the last part of a guest's name with only ASCII letters, digits and `._-` in it."""
    last = _UNSAFE.sub("_", name.rpartition("/")[2]).lstrip("._-")
    stem, point, ending = last.rpartition(".")

    if not point or not stem or len(ending) > _MAX_ENDING_CHARACTERS:
        return last[:_MAX_STEM_CHARACTERS] or "file"

    return f"{stem[:_MAX_STEM_CHARACTERS]}.{ending}"


PublishedFiles: TypeAlias = list[PublishedFile]
# The time and the size of a file when it was published.
Version: TypeAlias = tuple[datetime | None, int]

_PICTURES = ("image/png", "image/jpeg", "application/pdf")


async def find_files(sandbox: AsyncSandbox, paths: Iterable[str] | None) -> list[FileInfo]:
    """Return the named files, or those of /mnt/data without links and hidden ones."""
    if isinstance(paths, str):
        # A str is an iterable of its letters.
        paths = [paths]

    if paths is not None:
        return [await sandbox.files.get_info(path) for path in paths]

    entries = await list_tree(sandbox.files, DATA_PATH)
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
    name = entry.path.removeprefix(f"{DATA_PATH}/")
    return entry.name if name == entry.path else name
