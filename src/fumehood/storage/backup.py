"""A backup of a server: its database, files, keys and secrets, and the artifacts, as one archive.

Runs in the user's terminal, beside a server that may be running: the database is copied by SQLite's own backup, which
gives one moment of it, and the files after that. `restore` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from sqlalchemy.engine import make_url

from fumehood.errors import InvalidArgumentError, StorageStartError
from fumehood.storage.database import default_url

FORMAT = "fumehood-backup"
VERSION = 1
MANIFEST = "manifest.json"
DATABASE = "fumehood.db"
STATE, ARTIFACTS = "state", "artifacts"
_ATTEMPTS = 3
_NOT_COPIED = (".lock", "-wal", "-shm", ".sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """The content of a backup.

    Attributes:
        version: The version of fumehood that made it.
        revision: The revision of its database.
        made_at: When it was made, in seconds since 1970.
        files: The number of files in it.
        size_bytes: Their total size.
    """

    version: str
    revision: str
    made_at: float
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The folders and databases of a server.

    Attributes:
        state: Its state folder.
        database_url: Its database; empty: in the state folder.
        artifacts: The folder of artifacts; None where they are not in a folder.
    """

    state: Path
    database_url: str
    artifacts: Path | None

    @property
    def database(self) -> Path:
        """The file of the database.

        Raises:
            InvalidArgumentError: The database is not a file of SQLite.
        """
        url = make_url(self.database_url or default_url(str(self.state)))

        if url.get_backend_name() != "sqlite" or not url.database:
            raise InvalidArgumentError(
                field="database_url",
                value=url.render_as_string(hide_password=True),
                allowed="a database of SQLite; back up another one by its own tools, such as pg_dump",
            )

        return Path(url.database)


def make_backup(places: ServerFiles, file: Path) -> Backup:
    """Writes a backup to a new file, readable only by this user.

    Raises:
        InvalidArgumentError: The file exists already, or the state folder has no server.
        StorageStartError: The database cannot be read, or files vanish faster than they are copied.
    """
    if os.path.lexists(file):
        raise InvalidArgumentError(field="FILE", value=str(file), allowed="a file that is not there yet")

    if not places.database.is_file():
        raise InvalidArgumentError(
            field="state_folder",
            value=str(places.state),
            allowed="the state folder of a server that was started",
            problem=f"there is nothing to back up: no server has kept its state in {str(places.state)!r}",
        )

    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as scratch:
        draft = Path(scratch) / "backup"

        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                made = _write(places, Path(scratch), draft)
                # Unlike a rename it replaces nothing.
                os.link(draft, file)
                return made

    raise StorageStartError(
        location=str(places.state), reason="files are removed faster than they can be copied"
    )


def _write(places: ServerFiles, scratch: Path, draft: Path) -> Backup:
    snapshot = scratch / DATABASE
    revision = _copy_database(places.database, snapshot)
    folders = {STATE: places.state}

    # The first artifact makes the folder.
    if places.artifacts is not None and places.artifacts.exists():
        folders[ARTIFACTS] = places.artifacts

    files: dict[str, dict[str, Any]] = {}

    with new_file(draft) as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
        _add(archive, f"{STATE}/{DATABASE}", snapshot, files)

        for name, folder in folders.items():
            for path in _files_of(folder, places.database):
                _add(archive, f"{name}/{path.relative_to(folder).as_posix()}", path, files)

        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "fumehood": metadata.version("fumehood"),
            "revision": revision,
            "made_at": time.time(),
            "files": files,
        }
        note = scratch / MANIFEST
        note.write_text(json.dumps(manifest), encoding="utf-8")
        _add(archive, MANIFEST, note, {})

    return described(manifest, draft)


def _copy_database(database: Path, target: Path) -> str:
    """Copies one moment of a database, and returns its revision."""
    target.unlink(missing_ok=True)

    try:
        with (
            contextlib.closing(sqlite3.connect(database)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            # The copy is one file, without a log beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
            return str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    except sqlite3.Error as error:
        raise StorageStartError(location=str(database), reason=str(error)) from error


def _files_of(folder: Path, database: Path) -> Iterator[Path]:
    """Yields the regular files of a folder, without the database, locks and sockets."""
    for root, _, names in os.walk(folder, onerror=_refuse):
        for name in sorted(names):
            path = Path(root) / name
            is_of_server = path.parent == database.parent
            is_passing = name == "lock" or name.endswith(_NOT_COPIED) or name.startswith(database.name)

            if is_of_server and is_passing:
                continue

            if path.is_file() and not path.is_symlink():
                yield path


def _refuse(error: OSError) -> None:
    raise StorageStartError(location=str(error.filename), reason=error.strerror or str(error)) from error


def _add(archive: tarfile.TarFile, name: str, path: Path, files: dict[str, dict[str, Any]]) -> None:
    with path.open("rb") as source:
        info = tarfile.TarInfo(name)
        info.size, info.mode = os.fstat(source.fileno()).st_size, 0o600
        # A file that grows meanwhile, such as an audit record, is read once: what is written is what is counted.
        copied = _Digested(source)
        archive.addfile(info, copied)

    files[name] = {"bytes": info.size, "sha256": copied.digest.hexdigest()}


class _Digested:
    """A file that computes the digest of the bytes read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Reads as a file does."""
        data = self._source.read(size)
        self.digest.update(data)
        return data


def new_file(path: Path) -> IO[bytes]:
    """Opens a new file, readable only by this user, and replaces an existing file."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def described(manifest: dict[str, Any], file: Path) -> Backup:
    """Returns the description in a manifest; raises InvalidArgumentError if it is incomplete."""
    try:
        return Backup(
            version=str(manifest["fumehood"]),
            revision=str(manifest["revision"]),
            made_at=float(manifest["made_at"]),
            files=len(manifest["files"]),
            size_bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise no_backup(file, "its manifest is not whole") from None


def no_backup(file: Path, reason: str) -> InvalidArgumentError:
    """Returns the error for a file that is not a complete backup."""
    return InvalidArgumentError(
        field="FILE", value=str(file), allowed=f"a whole archive of `fumehood backup`: {reason}"
    )
