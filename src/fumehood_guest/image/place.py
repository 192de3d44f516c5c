"""Copies files into an image, or out of one, as COPY and ADD do: tar archives over standard input and output.

Runs in an image jail (`image.jail`) whose root is the image, so that every link stays within the image. The archive may
come from another image, and is as hostile.
"""

from __future__ import annotations

import bz2  # noqa: F401 - tarfile imports it late, when there are no files any more
import fnmatch
import glob
import itertools
import json
import os
import sys
import tarfile
from typing import Any, Dict, Iterator, List, Optional

from fumehood_guest.image.tar_layer import LayerError, UnpackedLayer

_OF_THE_JAIL = ("/dev/", "/proc/", "/sys/")
# Of an archive, heads and what fills up its blocks come to less than its files once more.
_ARCHIVE_FACTOR = 2


def place(order: Dict[str, Any]) -> None:
    """Unpacks an archive from standard input below a folder of the image, and answers with one line of JSON.

    Args:
        order: `folder` (made if needed), `exact` (the path of the only file, unless that is a folder; or None),
            `uid`, `gid` and `mode` (or None) of the copied files, `max_entries`, `max_bytes`, and whether to set
            `owners`; `sources`, patterns of the paths in the archive to unpack, or None for all.
    """
    try:
        entries = _place(order)
    except LayerError as error:
        _answer(refused=error.kind, detail=error.detail[:500])
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        _answer(refused="damaged", detail=f"{type(error).__name__}: {error}"[:500])
    except MemoryError:
        _answer(refused="bounds", detail="reading it takes too much memory")
    else:
        _answer(entries=entries)


def _place(order: Dict[str, Any]) -> int:
    if order["empty"]:
        _open_folder(order["folder"])
        return 0

    is_packed = order["unpack"] or order["sources"] is not None

    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*" if is_packed else "r|") as archive:
        entries = _bounded(archive, order)

        if order["sources"] is not None:
            entries = _chosen(entries, order["sources"])

        first = next(entries, None)

        if first is None and order["sources"] is not None:
            raise LayerError("damaged", "none of its files is in the archive")

        folder, name = order["folder"], None

        if order["exact"] is not None and not os.path.isdir(order["exact"]) and _is_one_file(first, order):
            folder, name = os.path.split(order["exact"])

        is_new = not os.path.isdir(folder)
        root = _open_folder(folder)

        if is_new and order["sources"] is not None and order["owners"]:
            os.fchown(root, order["uid"], order["gid"])

        layer = _Placed(root, order["max_entries"], order["owners"])
        layer.unpack(_Renamed(archive, itertools.chain([first] if first else [], entries), name, order))

    return layer.entries


def _open_folder(folder: str) -> int:
    os.makedirs(folder, exist_ok=True)
    # A folder of the image: this process's root is the image, so every link on the path leads to the image too.
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_one_file(first: Optional[tarfile.TarInfo], order: Dict[str, Any]) -> bool:
    """Returns whether one file is copied, and not the content of a folder or the matches of a pattern."""
    if first is None or order["sources"] is None:
        return True

    has_pattern = any(sign in source for source in order["sources"] for sign in "*?[")
    return not first.isdir() and "/" not in first.name and not has_pattern


def _bounded(archive: tarfile.TarFile, order: Dict[str, Any]) -> Iterator[tarfile.TarInfo]:
    """Yields the entries of an archive, as long as the unpacked content is within the bounds.

    Raises:
        LayerError: The archive exceeds the bounds. Entries that match no pattern count as well, since they are
            decompressed too.
    """
    most_bytes = _ARCHIVE_FACTOR * order["max_bytes"]

    for number, entry in enumerate(archive, 1):
        # Kept by tarfile, for archives that can be read again.
        archive.members = []  # type: ignore[attr-defined]

        if number > order["max_entries"]:
            raise LayerError("bounds", f"it has more than {order['max_entries']} entries")

        # Where its content ends: behind all heads and files until then.
        if entry.offset_data + entry.size > most_bytes:
            raise LayerError("bounds", f"it has more than {most_bytes} bytes when it is unpacked")

        yield entry


def _chosen(entries: Iterator[tarfile.TarInfo], patterns: List[str]) -> Iterator[tarfile.TarInfo]:
    """Yields the entries that match the patterns, by their names in the copy.

    A matching folder stands for its content.
    """
    for entry in entries:
        name = _name_in_copy(entry.name, entry.isdir(), patterns)

        if name is None:
            continue

        if entry.islnk():
            entry.linkname = _name_in_copy(entry.linkname, False, patterns) or entry.linkname

        entry.name = name
        yield entry


def _name_in_copy(path: str, is_folder: bool, patterns: List[str]) -> Optional[str]:
    """Returns the name of an entry in the copy, "." for the folder itself; None if no pattern names it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]

    for pattern in patterns:
        wanted = [part for part in pattern.split("/") if part not in ("", ".")]
        # Below a folder that is named, also where what is below it is a pattern of any depth.
        fixed = wanted[: wanted.index("**")] if "**" in wanted else wanted

        if len(parts) < len(fixed) or not all(map(fnmatch.fnmatchcase, parts, fixed)):
            continue

        rest = parts[len(fixed) :]

        if rest:
            # With a slash, which distinguishes it from a file that is named itself.
            return f"./{'/'.join(rest)}"

        if is_folder:
            return "."

        return parts[-1] if parts else None

    return None


class _Placed(UnpackedLayer):
    """A destination folder that has content already; only entries that the copy replaces are removed."""

    is_whole = False


class _Renamed:
    """An archive whose entries get the owner, mode and name of a COPY."""

    def __init__(
        self,
        archive: tarfile.TarFile,
        entries: Iterator[tarfile.TarInfo],
        name: Optional[str],
        order: Dict[str, Any],
    ) -> None:
        self._archive = archive
        self._entries = entries
        self._left_bytes = order["max_bytes"]
        self._name = name
        self._order = order
        self.members: List[Any] = []

    def __iter__(self) -> Any:
        for entry in self._entries:
            # A few bytes that are packed can be many.
            self._left_bytes -= entry.size

            if self._left_bytes < 0:
                raise LayerError("bounds", f"it has more than {self._order['max_bytes']} bytes")

            if not self._order["unpack"]:
                entry.uid, entry.gid = self._order["uid"], self._order["gid"]

            if self._order["mode"] is not None:
                entry.mode = self._order["mode"]

            if self._name is not None:
                entry.name = self._name
            elif self._order["sources"] is not None and entry.name == ".":
                # What is there already stays as it is.
                continue

            if not self._is_of_the_jail(entry.name):
                yield entry

    def _is_of_the_jail(self, name: str) -> bool:
        """Whether a path is below a mount of the jail, whose content does not become part of the image."""
        path = os.path.normpath(os.path.join("/", self._order["folder"], name.lstrip("/")))
        return f"{path}/".startswith(_OF_THE_JAIL)

    def extractfile(self, entry: tarfile.TarInfo) -> Any:
        """Returns the content of an entry, as `tarfile` does."""
        return self._archive.extractfile(entry)


def pack(order: Dict[str, Any]) -> None:
    """Writes files of the image to standard output, as an archive.

    Args:
        order: `sources`, patterns of absolute paths; a folder that matches stands for its content.
    """
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=False) as archive:
        for pattern in order["sources"]:
            for path in sorted(glob.glob(pattern)) or [pattern]:
                _pack_one(archive, path)

    sys.stdout.buffer.flush()


def _pack_one(archive: tarfile.TarFile, path: str) -> None:
    if not os.path.isdir(path):
        # A link that is named itself is followed, as COPY does.
        archive.add(os.path.realpath(path), os.path.basename(path))
        return

    for name in sorted(os.listdir(path)):
        archive.add(os.path.join(path, name), name)


def _answer(**fields: Any) -> None:
    os.write(1, json.dumps(fields).encode("utf-8", "replace"))
