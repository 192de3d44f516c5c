"""The context of a build: the folder that COPY and ADD take files from.

Runs in the host process, over a folder of the user. Names never lead out of it, links in it are copied as links, and
files that `.dockerignore` lists are left out.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import IO

from fumehood.errors import InvalidArgumentError

_MOST_FILES = 200_000
_CHUNK_BYTES = 1 << 20
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")


class BuildContext:
    """The folder with the files of a build.

    Args:
        folder: Its path; None for a build without one.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)

        if folder is not None and not os.path.isdir(folder):
            raise InvalidArgumentError(field="context", value=folder, allowed="a folder that exists")

        self._ignored = _read_ignored(self._folder)

    def find(self, patterns: tuple[str, ...]) -> list[tuple[str, str]]:
        """Returns the absolute paths that match patterns, each with its name in the copy ("": the content of a folder).

        Raises:
            InvalidArgumentError: A pattern matches nothing, or leads out of the context.
        """
        found: list[tuple[str, str]] = []

        for pattern in patterns:
            relative = os.path.normpath(pattern.lstrip("/"))

            if self._folder is None or relative.startswith(".."):
                raise self._missing(pattern)

            names = sorted(glob.glob(relative, root_dir=self._folder, include_hidden=True))
            kept = [name for name in names if not self._is_ignored(name)]

            if not kept:
                raise self._missing(pattern)

            for name in kept:
                path = os.path.realpath(os.path.join(self._folder, name))

                if os.path.commonpath([path, self._folder]) != self._folder:
                    raise self._missing(pattern)

                found.append((path, "" if os.path.isdir(path) else os.path.basename(name)))

        return found

    def digest(self, found: list[tuple[str, str]]) -> str:
        """Returns a digest of names, kinds, modes and content."""
        digest = hashlib.sha256()

        for path, name in self._walk(found):
            info = os.lstat(path)
            digest.update(f"{name}\0{info.st_mode:o}\0".encode("utf-8", "surrogateescape"))

            if stat.S_ISLNK(info.st_mode):
                digest.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())

        return digest.hexdigest()

    def write(self, found: list[tuple[str, str]], file: IO[bytes]) -> None:
        """Writes the files that `find` has returned as an archive."""
        with tarfile.open(fileobj=file, mode="w|") as archive:
            for path, name in self._walk(found):
                archive.add(path, name, recursive=False)

    def _walk(self, found: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        count = 0

        for path, name in found:
            for inner, relative in _tree(path):
                shown = f"{name}/{relative}".strip("/")

                if not shown or (inner != path and self._is_ignored(os.path.relpath(inner, self._folder))):
                    continue

                count += 1

                if count > _MOST_FILES:
                    raise InvalidArgumentError(
                        field="context",
                        value=self._folder,
                        allowed=f"at most {_MOST_FILES} files; see .dockerignore",
                    )

                yield inner, shown

    def _is_ignored(self, relative: str) -> bool:
        is_ignored = False
        parts = relative.split("/")
        places = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]

        for pattern in self._ignored:
            if any(_matches(place, pattern.removeprefix("!")) for place in places):
                is_ignored = not pattern.startswith("!")

        return is_ignored

    def _missing(self, pattern: str) -> InvalidArgumentError:
        where = (
            f"the context {self._folder!r}"
            if self._folder is not None
            else "a context, which this build has not"
        )
        return InvalidArgumentError(field="COPY", value=pattern, allowed=f"files of {where}")


def is_archive(name: str) -> bool:
    """Returns whether ADD unpacks a file of this name."""
    return name.endswith(_ARCHIVES)


def _tree(path: str) -> Iterator[tuple[str, str]]:
    yield path, ""

    if os.path.isdir(path) and not os.path.islink(path):
        for root, folders, names in os.walk(path):
            folders.sort()

            for name in sorted((*folders, *names)):
                inner = os.path.join(root, name)
                yield inner, os.path.relpath(inner, path)


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return _matches(path, pattern[3:]) or fnmatch.fnmatchcase(path, f"*/{pattern[3:]}")

    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _read_ignored(folder: str | None) -> list[str]:
    if folder is None:
        return []

    try:
        with open(os.path.join(folder, ".dockerignore"), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return []

    kept = [line for line in lines if line and not line.startswith("#")]
    return [
        ("!" if line.startswith("!") else "") + os.path.normpath(line.lstrip("!").lstrip("/"))
        for line in kept
    ]
