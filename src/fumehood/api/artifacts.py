"""Files and pictures of a sandbox, brought back into a directory of the host.

Runs in the host process, over the public `Sandbox` only. The guest chose every name and every size: a name
becomes a path of the host only part by part, without `..`, links or control characters; nothing that is
there is replaced unless the caller says so; the bytes are bounded in total, because a sparse file costs the
guest nothing and may claim to be endless.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fumehood.api.sandbox import Filesystem
from fumehood.bounds import MIB
from fumehood.errors import FileError, InvalidArgumentError
from fumehood.text import visible_line
from fumehood.values.results import Result
from fumehood.values.sandbox import FileInfo

# NAME_MAX of Linux, limits.h.
_MAX_NAME_BYTES = 255
# Attribute of `Result` and ending of the file, the best first.
_PICTURES = (("png", "png"), ("jpeg", "jpg"), ("pdf", "pdf"))
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file that was brought back.

    Attributes:
        source: Its path in the sandbox, or the name of the picture.
        path: Its path on the host; empty if it was left out.
        size_bytes: Its size.
        sha256: The digest of its content, of a file that was brought back.
        skipped: Why it was left out; empty if it was not.
    """

    source: str
    path: str = ""
    size_bytes: int = 0
    sha256: str = ""
    skipped: str = ""


def save_files(
    files: Filesystem,
    entries: Iterable[FileInfo],
    *,
    root: str,
    into: str,
    overwrite: bool | Callable[[str], bool] = False,
    max_bytes: int = 512 * MIB,
) -> list[Saved]:
    """Bring files of a sandbox back.

    Args:
        files: The sandbox's files.
        entries: Which; directories and links are passed over.
        root: Directory of the sandbox that `into` stands for.
        into: Directory of the host; made if it is not there.
        overwrite: Replace files of the host that are already there; or a function that is given the path of one and
            tells whether it may be replaced.
        max_bytes: Bytes of all files together; what would exceed it is left out.
    """
    saved: list[Saved] = []
    room = max_bytes

    for entry in entries:
        if entry.type != "file" or entry.symlink_target is not None:
            continue

        try:
            done = _save_file(files, entry, root=root, into=into, overwrite=overwrite, max_bytes=room)
        except OSError as error:
            # Of this machine: a file is where a folder should be, a path is too long, the disk is full.
            done = Saved(source=entry.path, skipped=error.strerror or str(error))

        room -= done.size_bytes
        saved.append(done)

    return saved


def save_pictures(results: Iterable[Result], *, into: str, stem: str) -> list[Saved]:
    """Write the picture of each result that has one; a number that is not in use is chosen for its name."""
    saved: list[Saved] = []

    for result in results:
        picture = picture_of(result)

        if picture is not None:
            content, ending = picture
            os.makedirs(into, exist_ok=True)
            path = _write_numbered(content, into=into, stem=stem, ending=ending)
            saved.append(Saved(source=f"figure {len(saved) + 1}", path=path, size_bytes=len(content)))

    return saved


def picture_of(result: Result) -> tuple[bytes, str] | None:
    """Return the bytes of a result's picture and the ending of its file, or None if it has none."""
    for name, ending in _PICTURES:
        content: bytes | None = getattr(result, name)

        if content is not None:
            return content, ending

    return None


def list_tree(files: Filesystem, root: str) -> list[FileInfo]:
    """List what a program may have left below `root`: all but what is hidden, or in a hidden directory."""
    entries = files.list(root, depth=_MAX_DEPTH) if files.exists(root) else []
    return [entry for entry in entries if "/." not in entry.path.removeprefix(root.rstrip("/"))]


def _save_file(
    files: Filesystem,
    entry: FileInfo,
    *,
    root: str,
    into: str,
    overwrite: bool | Callable[[str], bool],
    max_bytes: int,
) -> Saved:
    if not _is_text(entry.path):
        return Saved(source=entry.path, skipped="its name is no text in UTF-8")

    target = _host_path(entry.path, root=root, into=into)

    if target is None:
        return Saved(source=entry.path, skipped="its name is no safe path")

    parent = os.path.dirname(target)

    # A link of the host below `into` could lead out of it. Looked at before a folder is made there.
    if not _is_within(os.path.realpath(parent), os.path.realpath(into)):
        return Saved(source=entry.path, skipped=f"{parent} leads out of {into}")

    if os.path.lexists(target) and not (overwrite(target) if callable(overwrite) else overwrite):
        return Saved(source=entry.path, skipped=f"{target} is already there")

    if entry.size_bytes > max_bytes:
        return Saved(source=entry.path, skipped=f"its {entry.size_bytes} bytes are too many")

    os.makedirs(parent, exist_ok=True)
    return _copy(files, entry, target, max_bytes)


def _host_path(path: str, *, root: str, into: str) -> str | None:
    prefix = f"{root.rstrip('/')}/"

    if not path.startswith(prefix):
        return None

    parts = [
        visible_line(part, max_characters=len(part) * 6) for part in path.removeprefix(prefix).split("/")
    ]
    is_safe = all(part not in ("", ".", "..") and len(part.encode()) <= _MAX_NAME_BYTES for part in parts)
    return os.path.join(into, *parts) if is_safe else None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False

    return True


def _is_within(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _copy(files: Filesystem, entry: FileInfo, target: str, max_bytes: int) -> Saved:
    size = 0
    digest = hashlib.sha256()
    descriptor, temporary = tempfile.mkstemp(prefix=".fumehood-", dir=os.path.dirname(target))

    try:
        with open(descriptor, "wb") as file:
            for chunk in files.read(entry.path, format="stream"):
                size += len(chunk)

                if size > max_bytes:
                    return Saved(source=entry.path, skipped=f"it grew beyond {max_bytes} bytes")

                digest.update(chunk)
                file.write(chunk)

        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except (FileError, InvalidArgumentError) as error:
        return Saved(source=entry.path, skipped=error.message)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)

    return Saved(source=entry.path, path=target, size_bytes=size, sha256=digest.hexdigest())


def _write_numbered(content: bytes, *, into: str, stem: str, ending: str) -> str:
    number = 1

    while True:
        path = os.path.join(into, f"{stem}-{number}.{ending}")

        try:
            with open(path, "xb") as file:
                file.write(content)
        except FileExistsError:
            number += 1
        else:
            return path
