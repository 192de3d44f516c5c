"""The record of files that `--output` has written into a folder: the next run may replace these and no others.

The record is in the user's state folder and not beside the files: a folder that came from elsewhere could otherwise
name files that are not ours. A file counts as ours while it has the content that a run wrote; one that the user has
changed since is the user's.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fumehood.cli.terminal import note

if TYPE_CHECKING:
    from fumehood.api.transfers import Saved

# The most files that are recorded for one folder; the oldest are dropped.
_MAX_FILES = 20_000
_READ_BYTES = 1 << 20


class OutputRecord:
    """The files that runs have written into one folder.

    Args:
        folder: The folder that `--output` names.
        overwrite: Whether every file may be replaced.
    """

    def __init__(self, folder: str, *, overwrite: bool) -> None:
        self._folder = os.path.realpath(folder)
        self._overwrite = overwrite
        self._path = (
            state_folder() / "outputs" / f"{hashlib.sha256(os.fsencode(self._folder)).hexdigest()}.json"
        )
        self._known = _read(self._path)
        self._written: set[str] = set()

    def may_replace(self, path: str) -> bool:
        """Return whether an existing file may be replaced: never one that this run has written."""
        name = self._name(path)

        if name in self._written:
            return False

        return self._overwrite or (name in self._known and _digest(path) == self._known[name])

    def add(self, saved: Iterable[Saved]) -> None:
        """Record the files that this run has written."""
        for item in saved:
            if item.path and item.sha256:
                name = self._name(item.path)
                self._written.add(name)
                self._known.pop(name, None)
                self._known[name] = item.sha256

    def save(self) -> None:
        """Store the record for the next run; a failure prints a note and raises nothing."""
        if not self._written:
            return

        kept = dict(list(self._known.items())[-_MAX_FILES:])
        text = json.dumps({"folder": visible_path(self._folder), "files": kept})
        try:
            # Each by itself: a mode is that of the last folder alone, and a server refuses one that others can enter.
            state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._path.parent)
            with open(descriptor, "w") as file:
                file.write(text)

            os.replace(temporary, self._path)
        except OSError as error:
            note(f"the next run will not know these files as its own: {self._path}: {error.strerror}")

    def _name(self, path: str) -> str:
        return os.path.relpath(
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), self._folder
        )


def visible_path(path: str) -> str:
    """Return a path of this machine as text that can be encoded, whatever its bytes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def state_folder() -> Path:
    """Return the folder of state that commands keep between runs."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "fumehood"


def _read(path: Path) -> dict[str, str]:
    try:
        content: Any = json.loads(path.read_text())
        return {str(name): str(digest) for name, digest in content["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Without a record no file counts as ours: none is replaced, and a note is printed.
        return {}


def _digest(path: str) -> str | None:
    """Return the digest of a regular file; None for any other file, or one that cannot be read."""
    digest = hashlib.sha256()
    try:
        # Not followed: a link stands for a file of the user's. Not waited for: it may be a FIFO by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
    except OSError:
        return None

    return digest.hexdigest()
