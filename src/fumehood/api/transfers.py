"""Files that go between this machine and a sandbox: `upload`, `download`, and the command line's copies.

Over the public `AsyncFilesystem` only. The guest chose every name and every size: a name becomes a path of this machine
only part by part, without `..`, links or control characters; an existing file is replaced only where the caller allows
it; the bytes are bounded in total, because a sparse file costs the guest nothing and may claim to be endless.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from fumehood.api.files import AsyncFilesystem, InsidePath, inside_path
from fumehood.bounds import MIB
from fumehood.errors import (
    DownloadError,
    FileError,
    FileTooLargeError,
    InvalidArgumentError,
    PathNotFoundError,
)
from fumehood.text import visible_line
from fumehood.values.sandbox import FileInfo

# NAME_MAX of Linux, limits.h.
_MAX_NAME_BYTES = 255
# The most that one listing shows; deeper folders are listed in their turn.
_LISTED_LEVELS = 64
_MAX_ENTRIES = 100_000
# Dots alone are an ordinary name.
_HIDDEN = re.compile(r"/\.(?!\.*(?:/|\Z))")
MAX_DOWNLOAD_BYTES = 512 * MIB

LocalPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file that was copied to this machine, or left out.

    Attributes:
        source: Its path in the sandbox, or the name of the picture.
        path: Its path on this machine; empty if it was left out.
        size_bytes: Its size.
        sha256: The digest of its content, if it was copied.
        skipped: Why it was left out; empty if it was not.
    """

    source: str
    path: str = ""
    size_bytes: int = 0
    sha256: str = ""
    skipped: str = ""


async def upload(files: AsyncFilesystem, local: LocalPath, remote: InsidePath | None) -> list[FileInfo]:
    """Write a file of this machine, or a folder with all files in it, into a sandbox.

    Args:
        files: The sandbox's files.
        local: The file or folder.
        remote: Its path in the sandbox; None: its own name, in the home directory.

    Raises:
        PathNotFoundError: Nothing is at this path of this machine.
    """
    source = Path(local)
    destination = source.absolute().name if remote is None else inside_path(remote)

    if not await asyncio.to_thread(source.exists):
        here = "it is a path of this machine, in the current folder if it is relative"
        raise PathNotFoundError(path=str(local), operation="upload", errno_value=errno.ENOENT, hint=here)

    pairs = await asyncio.to_thread(lambda: list(local_files(source, destination)))
    written: list[FileInfo] = []

    for path, inside in pairs:
        # A FIFO would stop the engine's loop until another process writes to it.
        if path.exists() and not path.is_file():
            raise InvalidArgumentError(field="local", value=str(path), allowed="a file, or a folder of files")

        with path.open("rb") as content:
            written.append(await files.write(inside, content))

    return written


def local_files(source: Path, destination: str) -> Iterator[tuple[Path, str]]:
    """Yield each file of a folder, or the file, and its path in the sandbox; links to folders are not followed."""
    if not source.is_dir():
        yield source, destination
        return

    for folder, folders, names in os.walk(source):
        folders.sort()

        for name in sorted(names):
            path = Path(folder, name)
            yield path, f"{destination.rstrip('/')}/{path.relative_to(source).as_posix()}"


async def download(
    files: AsyncFilesystem, remote: InsidePath, local: LocalPath, *, overwrite: bool, max_bytes: int
) -> list[Path]:
    """Copy a file of a sandbox, or a folder with its files that are not hidden, to this machine.

    Raises:
        DownloadError: Some files could not be written; the error names them, each with the reason.
    """
    found = await files.get_info(remote)
    into = Path(local)

    if found.type == "dir":
        entries, root = await list_tree(files, found.path), found.path

        if not entries:
            # What was asked for is there, as for a folder with files.
            await asyncio.to_thread(into.mkdir, parents=True, exist_ok=True)
    else:
        # The caller has chosen the name, or has named a folder for it.
        is_folder = into.is_dir() or str(local).endswith(("/", os.sep))
        root, name = os.path.split(found.path)
        target = into / name if is_folder else into
        return [
            await _download_file(
                files, found, target, overwrite=overwrite or not is_folder, max_bytes=max_bytes
            )
        ]

    saved = await save_files(
        files, entries, root=root, into=str(into), overwrite=overwrite, max_bytes=max_bytes
    )
    left_out = tuple(f"{item.source}: {item.skipped}" for item in saved if item.skipped)

    if left_out:
        raise DownloadError(left_out=left_out, count=len(saved))

    return [Path(item.path) for item in saved]


async def _download_file(
    files: AsyncFilesystem, entry: FileInfo, target: Path, *, overwrite: bool, max_bytes: int
) -> Path:
    skipped = f"{target} is already there" if not overwrite and os.path.lexists(target) else ""

    if not skipped:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        skipped = (await _copy(files, entry, str(target.absolute()), max_bytes)).skipped

    if skipped:
        raise DownloadError(left_out=(f"{entry.path}: {skipped}",), count=1)

    return target


class FileSource(Protocol):
    """Files of a sandbox that can be read; `AsyncFilesystem` is one."""

    async def read(self, path: str, *, format: Literal["stream"]) -> AsyncGenerator[bytes, None]:
        """Return the content piece by piece."""


async def save_files(
    files: FileSource,
    entries: Iterable[FileInfo],
    *,
    root: str,
    into: str,
    overwrite: bool | Callable[[str], bool] = False,
    max_bytes: int = MAX_DOWNLOAD_BYTES,
) -> list[Saved]:
    """Copy files of a sandbox to this machine.

    Args:
        files: The sandbox's files.
        entries: The files; directories and links are skipped.
        root: The directory of the sandbox that corresponds to `into`.
        into: Directory of this machine; made if it does not exist.
        overwrite: Whether to replace existing files of this machine; or a function that gets the path of one and
            returns whether it may be replaced.
        max_bytes: The most bytes of all files together; files beyond it are left out.
    """
    saved: list[Saved] = []
    room = max_bytes

    for entry in entries:
        if entry.type != "file" or entry.symlink_target is not None:
            continue

        try:
            done = await _save_file(files, entry, root=root, into=into, overwrite=overwrite, max_bytes=room)
        except OSError as error:
            # Errors of this machine: a file is where a folder should be, a path is too long, or the disk is full.
            done = Saved(source=entry.path, skipped=error.strerror or str(error))

        room -= done.size_bytes
        saved.append(done)

    return saved


async def list_tree(files: AsyncFilesystem, root: str) -> list[FileInfo]:
    """List the files that a program may have left below `root`, without hidden ones and those in hidden directories.

    Raises:
        InvalidArgumentError: There are too many entries.
    """
    found: list[FileInfo] = []
    waiting = [root]

    while waiting:
        folder = waiting.pop()
        prefix = folder.rstrip("/")

        try:
            entries = await files.list(folder, depth=_LISTED_LEVELS)
        except PathNotFoundError:
            # It is not there, or a process of the guest has just removed it.
            continue

        for entry in entries:
            inside = entry.path.removeprefix(prefix)

            if _HIDDEN.search(inside):
                continue

            found.append(entry)

            if entry.type == "dir" and entry.symlink_target is None and inside.count("/") == _LISTED_LEVELS:
                waiting.append(entry.path)

        if len(found) > _MAX_ENTRIES:
            allowed = f"a directory of at most {_MAX_ENTRIES:,} entries; take a part of it"
            raise InvalidArgumentError(field="path", value=root, allowed=allowed)

    return sorted(found, key=lambda entry: entry.path)


async def _save_file(
    files: FileSource,
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
    return await _copy(files, entry, target, max_bytes)


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


async def _copy(files: FileSource, entry: FileInfo, target: str, max_bytes: int) -> Saved:
    descriptor, temporary = tempfile.mkstemp(prefix=".fumehood-", dir=os.path.dirname(target))
    digest = hashlib.sha256()
    size = 0

    try:
        with open(descriptor, "wb") as file:
            async for chunk in _chunks(files, entry.path, max_bytes):
                size += len(chunk)
                digest.update(chunk)
                # A disk may be slow, and the engine serves others meanwhile.
                await asyncio.to_thread(file.write, chunk)

        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except (FileError, InvalidArgumentError) as error:
        return Saved(source=entry.path, skipped=error.message)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)

    return Saved(source=entry.path, path=target, size_bytes=size, sha256=digest.hexdigest())


async def _chunks(files: FileSource, path: str, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file.

    Raises:
        FileTooLargeError: The file has more bytes than allowed.
    """
    size = 0

    async with aclosing(await files.read(path, format="stream")) as chunks:
        async for chunk in chunks:
            size += len(chunk)

            if size > max_bytes:
                raise FileTooLargeError(path=path, operation="read", errno_value=errno.EFBIG)

            yield chunk
