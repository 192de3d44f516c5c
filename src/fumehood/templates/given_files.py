"""The files that a template gives to each of its sandboxes: checked, bounded, and copied once.

Runs in the host process, on a folder of the user. Each sandbox gets a copy of the small ones and links to the large
ones (see `fumehood_guest.init.home`), so the cost of a creation is bounded here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator

from fumehood.errors import InvalidArgumentError, TemplateError
from fumehood.values.template import Template

# A larger file is not copied into each sandbox but linked, read-only; `fumehood_guest.init.home` has the same number.
LARGE_FILE_BYTES = 1 << 20
MAX_ENTRIES = 2_000
MAX_COPIED_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 20


def describe_files(folder: str) -> list[list[str]]:
    """Returns the content of a folder: path, kind, and a digest or a link's target, in order.

    Raises:
        InvalidArgumentError: The path is not a folder, or the folder holds too much, or something other than files,
            folders and links.
    """
    return [
        [os.path.relpath(path, folder), *_describe_entry(folder, path, info)]
        for path, info in _entries(folder)
    ]


def check_files(template: Template) -> None:
    """Checks that sandboxes can be given the files of a template as they are.

    Raises:
        TemplateError: There are too many files, or one that the guest, an unknown user on this machine, may not read.
    """
    if template.files is None:
        return

    try:
        closed = [path for path, info in _entries(template.files) if not _everybody_reads(info)]
    except InvalidArgumentError as error:
        raise TemplateError(
            template=template.name, reason=error.message, hint=error.hint, logged="its files are refused"
        ) from None

    if not _everybody_reads(os.stat(template.files)):
        closed.insert(0, template.files)

    if closed:
        raise TemplateError(
            template=template.name,
            reason=f"its file {closed[0]!r} is not readable by everybody, and so by no sandbox",
            hint=f"chmod -R a+rX {template.files!r}, or `fumehood template build`, which copies the files",
            logged="a file of it is not readable by everybody",
        )


def _everybody_reads(info: os.stat_result) -> bool:
    needed = 0o005 if stat.S_ISDIR(info.st_mode) else 0o004
    return stat.S_ISLNK(info.st_mode) or info.st_mode & needed == needed


def _entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields every entry below a folder, in order, within the bounds of a creation."""
    if not os.path.isdir(folder):
        raise InvalidArgumentError(field="files", value=folder, allowed="a folder that exists")

    copied_bytes = 0

    for count, path in enumerate(_walk(folder), 1):
        info = os.lstat(path)

        if stat.S_ISREG(info.st_mode) and info.st_size <= LARGE_FILE_BYTES:
            copied_bytes += info.st_size

        if count > MAX_ENTRIES or copied_bytes > MAX_COPIED_BYTES:
            raise InvalidArgumentError(
                field="files",
                value=folder,
                allowed=f"at most {MAX_ENTRIES} entries, of which those of up to 1 MiB hold at most 32 MiB, because "
                "each sandbox gets its own copy; put much data into few large files, which are shown read-only",
            )

        yield path, info


def copy_files(folder: str, target: str) -> None:
    """Copies a folder that `describe_files` has checked, links as links."""
    shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)


def _walk(folder: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InvalidArgumentError(
            field="files", value=folder, allowed=f"folders that can be read ({error.strerror})"
        ) from None

    for entry in entries:
        yield entry.path

        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _describe_entry(folder: str, path: str, info: os.stat_result) -> tuple[str, str]:
    if stat.S_ISDIR(info.st_mode):
        return "dir", ""

    if stat.S_ISLNK(info.st_mode):
        inside = os.path.realpath(folder)

        leads_out = os.path.commonpath([inside, os.path.realpath(path)]) != inside

        if leads_out or os.path.isabs(os.readlink(path)):
            raise InvalidArgumentError(
                field="files",
                value=path,
                allowed="relative links that stay within the folder: no sandbox sees the rest",
            )

        return "link", os.readlink(path)

    if not stat.S_ISREG(info.st_mode):
        raise InvalidArgumentError(field="files", value=path, allowed="files, folders and links only")

    return "program" if info.st_mode & 0o100 else "file", _digest(path)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InvalidArgumentError(
            field="files", value=path, allowed=f"files that can be read ({error.strerror})"
        ) from None

    return digest.hexdigest()
