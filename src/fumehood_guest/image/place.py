"""Copies files into an image, or out of one, as COPY and ADD do: tar archives over standard input and output.

Runs in an image jail (`image.jail`) whose root is the image, so that every link leads to the image. What comes in may
come from another image, and is as hostile.
"""

from __future__ import annotations

import bz2  # noqa: F401 - tarfile imports it late, when there are no files any more
import glob
import json
import os
import sys
import tarfile
from typing import Any, Dict, List, Optional

from fumehood_guest.image.tar_layer import Layer, LayerError

_OF_THE_JAIL = ("/dev/", "/proc/", "/sys/")


def place(order: Dict[str, Any]) -> None:
    """Unpacks an archive from standard input below a folder of the image, and answers with one line of JSON.

    Args:
        order: `folder` (made if needed), `exact` (the path of the only file, unless that is a folder; or None),
            `uid`, `gid` and `mode` (or None) of what is made, `max_entries`, and whether to set `owners`.
    """
    try:
        entries = _place(order)
    except LayerError as error:
        _answer(refused=error.kind, detail=error.detail[:500])
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError) as error:
        _answer(refused="damaged", detail=f"{type(error).__name__}: {error}"[:500])
    else:
        _answer(entries=entries)


def _place(order: Dict[str, Any]) -> int:
    folder, name = order["folder"], None

    if order["exact"] is not None and not os.path.isdir(order["exact"]):
        folder, name = os.path.split(order["exact"])
    elif order["exact"] is not None:
        folder = order["exact"]

    os.makedirs(folder, exist_ok=True)
    # Of the image, and so is every link on the way to it.
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    layer = _Placed(root, order["max_entries"], order["owners"])

    if order["empty"]:
        return 0

    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*" if order["unpack"] else "r|") as archive:
        layer.unpack(_Renamed(archive, name, order))

    return layer.entries


class _Placed(Layer):
    """A folder that has content already, which stays but for what is replaced."""

    is_whole = False


class _Renamed:
    """An archive whose entries get the owner, mode and name of a COPY."""

    def __init__(self, archive: tarfile.TarFile, name: Optional[str], order: Dict[str, Any]) -> None:
        self._archive = archive
        self._name = name
        self._order = order
        self.members: List[Any] = []

    def __iter__(self) -> Any:
        for entry in self._archive:
            self._archive.members = []  # type: ignore[attr-defined]

            if not self._order["unpack"]:
                entry.uid, entry.gid = self._order["uid"], self._order["gid"]

            if self._order["mode"] is not None:
                entry.mode = self._order["mode"]

            if self._name is not None:
                entry.name = self._name

            if not self._is_of_the_jail(entry.name):
                yield entry

    def _is_of_the_jail(self, name: str) -> bool:
        """Whether a path lies in what the jail has mounted over the image, where nothing is kept."""
        path = os.path.normpath(os.path.join("/", self._order["folder"], name.lstrip("/")))
        return path.startswith(_OF_THE_JAIL)

    def extractfile(self, entry: tarfile.TarInfo) -> Any:
        """As of the archive itself."""
        return self._archive.extractfile(entry)


def pack(order: Dict[str, Any]) -> None:
    """Writes files of the image to standard output, as an archive.

    Args:
        order: `sources`, patterns of absolute paths; of a folder its content is meant.
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
