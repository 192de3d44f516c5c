"""The files of our guest code: what every sandbox gets a copy of, and what bytecode for images is compiled from.

Runs in the host process, and reads the folders of this installation only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import fumehood_guest
import fumehood_jail
import fumehood_wire

_GUEST_FILES = (".py", ".cjs", ".R", ".java")


def guest_code() -> Iterator[tuple[str, Path]]:
    """Yields each module that guests need: its path below the package folder, and its path on the host."""
    for package in (fumehood_guest, fumehood_jail, fumehood_wire):
        top = Path(package.__file__ or "").resolve().parent

        for path in sorted(_paths_below(str(top))):
            if path.endswith(_GUEST_FILES):
                yield os.path.relpath(path, top.parent), Path(path)


def guest_code_digest() -> str:
    """Returns a digest of all these files and their paths."""
    digest = hashlib.sha256()

    for name, path in guest_code():
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())

    return digest.hexdigest()


def _paths_below(top: str) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        for name in names:
            yield f"{folder}/{name}"
