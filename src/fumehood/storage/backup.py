"""A backup of a server: its database, files, keys and secrets, and the artifacts, as one archive; and back again.

Runs in the user's terminal, beside a server that may be running: the database is copied by SQLite's own backup, which
gives one moment of it, and the files after that. A restore writes beside the empty folder it is for, checks everything
by digest, and only then gives it the folder's name. It never overwrites anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import IO, Any

from sqlalchemy.engine import make_url

from fumehood.errors import InvalidArgumentError, StorageStartError, StorageVersionError
from fumehood.storage.database import check_revisions, default_url

_FORMAT = "fumehood-backup"
_VERSION = 1
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 256 << 20
_DATABASE = "fumehood.db"
_STATE, _ARTIFACTS = "state", "artifacts"
_ATTEMPTS = 3
_CHUNK_BYTES = 1 << 20
_NOT_COPIED = (".lock", "-wal", "-shm", ".sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """The content of a backup.

    Attributes:
        version: The version of fumehood that made it.
        revision: The revision of its database.
        made_at: When, in seconds since 1970.
        files: The number of files in it.
        size_bytes: Their size together.
    """

    version: str
    revision: str
    made_at: float
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a server keeps its things.

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
            InvalidArgumentError: It is no file of SQLite.
        """
        url = make_url(self.database_url or default_url(str(self.state)))

        if url.get_backend_name() != "sqlite" or not url.database:
            raise InvalidArgumentError(
                field="database_url",
                value=url.render_as_string(hide_password=True),
                allowed="a database of SQLite; back up another one by its own tools, such as pg_dump",
            )

        return Path(url.database)


def make_backup(places: Places, file: Path) -> Backup:
    """Writes a backup to a new file, readable only by this user.

    Raises:
        InvalidArgumentError: The file is there already, or there is no such server.
        StorageStartError: The database cannot be read, or files vanish faster than they are copied.
    """
    if os.path.lexists(file):
        raise InvalidArgumentError(field="FILE", value=str(file), allowed="a file that is not there yet")

    if not places.database.is_file():
        raise InvalidArgumentError(
            field="state_folder",
            value=str(places.state),
            allowed="the state folder of a server that was started",
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


def restore_backup(file: Path, places: Places) -> Backup:
    """Restores a backup into a state folder, and artifacts into theirs, that are empty or not there yet.

    Raises:
        InvalidArgumentError: The file is no whole backup, or a folder is not empty.
        StorageVersionError: It was made by a newer version.
        OSError: A file cannot be read or written.
    """
    artifacts = places.artifacts
    wanted = {_STATE: places.state} | ({} if artifacts is None else {_ARTIFACTS: artifacts})

    with contextlib.ExitStack() as stack:
        drafts = {name: _draft_for(target, stack) for name, target in wanted.items()}

        try:
            manifest, found = _unpack(file, drafts)
        except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgumentError | StorageStartError):
                raise

            # Of the system: a file that is not there, a full disk.
            if isinstance(error, OSError) and error.errno is not None:
                raise

            raise _no_backup(file, str(error) or type(error).__name__) from None

        backup = _described(manifest, file)
        check_revisions(str(file), [backup.revision])

        if found != manifest["files"]:
            raise _no_backup(file, "a file in it is missing, or not the one that was put into it")

        for name, draft in drafts.items():
            if name == _STATE or any(draft.iterdir()):
                _check_empty(name, wanted[name])

        for name, draft in drafts.items():
            if name == _STATE or any(draft.iterdir()):
                # An empty folder is replaced, in one step.
                draft.rename(wanted[name])

    return backup


def _write(places: Places, scratch: Path, draft: Path) -> Backup:
    snapshot = scratch / _DATABASE
    revision = _copy_database(places.database, snapshot)
    folders = {_STATE: places.state}

    # The first artifact makes the folder.
    if places.artifacts is not None and places.artifacts.exists():
        folders[_ARTIFACTS] = places.artifacts

    files: dict[str, dict[str, Any]] = {}

    with _new_file(draft) as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
        _add(archive, f"{_STATE}/{_DATABASE}", snapshot, files)

        for name, folder in folders.items():
            for path in _files_of(folder, places.database):
                _add(archive, f"{name}/{path.relative_to(folder).as_posix()}", path, files)

        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "fumehood": metadata.version("fumehood"),
            "revision": revision,
            "made_at": time.time(),
            "files": files,
        }
        note = scratch / _MANIFEST
        note.write_text(json.dumps(manifest), encoding="utf-8")
        _add(archive, _MANIFEST, note, {})

    return _described(manifest, draft)


def _copy_database(database: Path, target: Path) -> str:
    """Copies one moment of a database, and returns its revision."""
    target.unlink(missing_ok=True)

    try:
        with (
            contextlib.closing(sqlite3.connect(database)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            # A copy in one file: what is restored has no log beside it.
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
    """A file whose digest is that of the bytes that were read from it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Reads as a file does."""
        data = self._source.read(size)
        self.digest.update(data)
        return data


def _new_file(path: Path) -> IO[bytes]:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _draft_for(target: Path, stack: contextlib.ExitStack) -> Path:
    """Makes a folder beside the target, in the same filesystem, that is removed unless it becomes the target."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    stack.callback(shutil.rmtree, draft, ignore_errors=True)
    return draft


def _check_empty(name: str, folder: Path) -> None:
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgumentError(
            field="state_folder" if name == _STATE else "FUMEHOOD_ARTIFACTS",
            value=str(folder),
            allowed="a folder that is empty or not there yet: a restore overwrites nothing",
        )


def _unpack(file: Path, drafts: dict[str, Path]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Writes the files of an archive, and returns its manifest, and what was found."""
    found: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None

    with tarfile.open(file, mode="r:gz") as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isreg() else None

            if source is None or manifest is not None:
                raise _no_backup(file, f"{member.name[:200]!r} does not belong into one")

            if member.name == _MANIFEST:
                manifest = json.loads(source.read(_MAX_MANIFEST_BYTES))
                continue

            found[member.name] = _extract(source, member, _target_of(member.name, drafts, file))

    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise _no_backup(file, "it has no manifest of one")

    if manifest["version"] > _VERSION:
        raise StorageVersionError(
            location=str(file), found=f"backup {manifest['version']}", known=f"backup {_VERSION}"
        )

    return manifest, found


def _target_of(name: str, drafts: dict[str, Path], file: Path) -> Path:
    parts = PurePosixPath(name).parts
    is_plain = "/".join(parts) == name and not {"..", "."} & set(parts)

    if not is_plain or len(parts) < 2 or parts[0] not in (_STATE, _ARTIFACTS) or "\0" in name:
        raise _no_backup(file, f"{name[:200]!r} does not belong into one")

    if parts[0] not in drafts:
        raise InvalidArgumentError(
            field="FUMEHOOD_ARTIFACTS",
            value="no folder",
            allowed="a folder: the backup holds artifacts that lay in one",
        )

    return drafts[parts[0]].joinpath(*parts[1:])


def _extract(source: IO[bytes], member: tarfile.TarInfo, target: Path) -> dict[str, Any]:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()

    with _new_file(target) as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)

        copy.flush()
        os.fsync(copy.fileno())

    return {"bytes": member.size, "sha256": digest.hexdigest()}


def _described(manifest: dict[str, Any], file: Path) -> Backup:
    try:
        return Backup(
            version=str(manifest["fumehood"]),
            revision=str(manifest["revision"]),
            made_at=float(manifest["made_at"]),
            files=len(manifest["files"]),
            size_bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _no_backup(file, "its manifest is not whole") from None


def _no_backup(file: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="FILE", value=str(file), allowed=f"a whole archive of `fumehood backup`: {reason}"
    )
