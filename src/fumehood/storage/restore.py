"""A server's backup, restored: into a state folder and artifacts that are empty or not there yet, or not at all.

Runs in the user's terminal. Everything is written into a folder inside of the one it is for, since that may be a mount,
or the only folder that this user may write to; it is checked by digest, and moved to its place when all of it is right.
Nothing is ever overwritten. While a restore is under way, or when it was killed, its folder `.restoring` remains: a
server does not start on such a state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fumehood.errors import InvalidArgumentError, StorageStartError, StorageVersionError
from fumehood.storage.backup import (
    ARTIFACTS,
    DATABASE,
    FORMAT,
    MANIFEST,
    STATE,
    VERSION,
    Backup,
    ServerFiles,
    described,
    new_file,
    no_backup,
)
from fumehood.storage.database import check_revisions

# The draft; also, as the end of a name, that of a database elsewhere.
RESTORING = ".restoring"
_MAX_MANIFEST_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
# Of the filesystem, where a folder is the root of one.
_OF_MOUNT = "lost+found"


def restore_backup(file: Path, places: ServerFiles) -> Backup:
    """Restores a backup into a state folder, and artifacts into theirs, that are empty or not there yet.

    Raises:
        InvalidArgumentError: The file is not a complete backup, a folder is not empty or belongs to another user, or
            the database exists already or is not one of SQLite.
        StorageVersionError: The backup was made by a newer version.
        OSError: A file cannot be read or written.
    """
    database = places.database
    _check_database(database)
    folders = {ARTIFACTS: places.artifacts, STATE: places.state}

    with file.open("rb") as source, contextlib.ExitStack() as undoing:
        found = {name: _Place(name, path, undoing) for name, path in folders.items() if path is not None}

        for place in found.values():
            place.begin()

        backup = _read(file, source, found)
        _place_database(found[STATE], database, undoing)

        # The artifacts first: with the state a server can start.
        for place in found.values():
            place.move()

        undoing.pop_all()

    for place in found.values():
        place.end()

    return backup


class _Place:
    """A folder that something is restored to, and the draft in it.

    What is done there is done as the user that the folder belongs to: everything that is made is that user's, and no
    link of that user leads root anywhere.

    Args:
        name: The name of the folder in archives.
        folder: The folder.
        undoing: Undoes all that was done, unless the restore ends well.
    """

    def __init__(self, name: str, folder: Path, undoing: contextlib.ExitStack) -> None:
        self.name = name
        self.folder = folder
        self._undoing = undoing
        self._is_new = False

    def begin(self) -> None:
        """Makes the draft, and the folder if it does not exist."""
        if not os.path.lexists(self.folder):
            self.folder.mkdir(mode=0o700, parents=True)
            self._is_new = True
            self._undoing.callback(shutil.rmtree, self.folder, ignore_errors=True)

        if not self.folder.is_dir() or {path.name for path in self.folder.iterdir()} - {_OF_MOUNT}:
            raise self._refused("a folder that is empty or not there yet: a restore overwrites nothing")

        if os.geteuid() not in (0, self.folder.stat().st_uid):
            raise self._refused("a folder of this user: its owner, or root, can restore it")

        with _as_owner(self.folder) as folder:
            # Fails when another restore has begun meanwhile.
            (folder / RESTORING).mkdir(mode=0o700)

        self._undo(RESTORING)

    def extract(self, source: IO[bytes], parts: tuple[str, ...]) -> str:
        """Writes a file of the draft, and returns its digest."""
        digest = hashlib.sha256()

        with _as_owner(self.folder) as folder:
            target = folder.joinpath(RESTORING, *parts)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

            with new_file(target) as copy:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)

                copy.flush()
                os.fsync(copy.fileno())

        return digest.hexdigest()

    def move(self) -> None:
        """Moves what the draft holds to its place, the database last."""
        with _as_owner(self.folder) as folder:
            if self.name == STATE:
                # A server accepts no other.
                folder.chmod(0o700)

            for path in sorted((folder / RESTORING).iterdir(), key=lambda path: path.name == DATABASE):
                self._undo(path.name)
                path.rename(folder / path.name)

    def end(self) -> None:
        """Removes the empty draft, and a folder that was made for it alone."""
        with _as_owner(self.folder) as folder:
            (folder / RESTORING).rmdir()

        if self._is_new and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _undo(self, name: str) -> None:
        def remove() -> None:
            with _as_owner(self.folder) as folder:
                if (folder / name).is_dir():
                    shutil.rmtree(folder / name, ignore_errors=True)
                else:
                    (folder / name).unlink(missing_ok=True)

        self._undoing.callback(remove)

    def _refused(self, allowed: str) -> InvalidArgumentError:
        field = "state_folder" if self.name == STATE else "FUMEHOOD_ARTIFACTS"
        return InvalidArgumentError(field=field, value=str(self.folder), allowed=allowed)


@contextlib.contextmanager
def _as_owner(folder: Path) -> Iterator[Path]:
    """Runs the block with the rights of the user that a folder belongs to, where this is root.

    Yields:
        A path of the folder that this user can reach: as with volumes of Docker, other users may not enter the folders
        above it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    owner, group, groups = os.fstat(fd), os.getegid(), os.getgroups()
    try:
        if os.geteuid() != 0 or owner.st_uid == 0:
            yield folder
            return

        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        try:
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)
    finally:
        os.close(fd)


def _check_database(database: Path) -> None:
    for path in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
        if os.path.lexists(path):
            raise InvalidArgumentError(
                field="database_url",
                value=str(path),
                allowed="a file that is not there yet: a restore overwrites nothing",
            )


def _place_database(state: _Place, database: Path, undoing: contextlib.ExitStack) -> None:
    """Moves the database to where the server's settings say that it is, unless that is in the state folder."""
    if database.absolute() == (state.folder / DATABASE).absolute():
        return

    above = next(one for one in database.absolute().parents if one.exists())

    with _as_owner(above) as reached:
        (reached / database.absolute().parent.relative_to(above)).mkdir(
            mode=0o700, parents=True, exist_ok=True
        )

    with _as_owner(state.folder) as folder:
        source = (folder / RESTORING / DATABASE).open("rb")

    with source, _as_owner(database.parent) as folder:
        draft = folder / f"{database.name}{RESTORING}"

        with new_file(draft) as copy:
            shutil.copyfileobj(source, copy, _CHUNK_BYTES)
            copy.flush()
            os.fsync(copy.fileno())

        try:
            # Unlike a rename it replaces nothing.
            os.link(draft, folder / database.name)
        finally:
            draft.unlink()

    undoing.callback(database.unlink, missing_ok=True)

    with _as_owner(state.folder) as folder:
        (folder / RESTORING / DATABASE).unlink()


def _read(file: Path, source: IO[bytes], places: dict[str, _Place]) -> Backup:
    """Writes the content of a backup to the drafts, and checks all of it."""
    try:
        manifest, found = _unpack(file, source, places)
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidArgumentError | StorageStartError):
            raise

        # An error of the system, such as a full disk.
        if isinstance(error, OSError) and error.errno is not None:
            raise

        raise no_backup(file, str(error) or type(error).__name__) from None

    backup = described(manifest, file)
    check_revisions(str(file), [backup.revision])

    if found != manifest["files"] or f"{STATE}/{DATABASE}" not in found:
        raise no_backup(file, "a file in it is missing, or not the one that was put into it")

    return backup


def _unpack(
    file: Path, archived: IO[bytes], places: dict[str, _Place]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Writes the files of an archive, and returns its manifest, and what was found."""
    found: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None

    with tarfile.open(fileobj=archived, mode="r:gz") as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isreg() else None

            if source is None or manifest is not None:
                raise no_backup(file, f"{member.name[:200]!r} does not belong into one")

            if member.name == MANIFEST:
                manifest = json.loads(source.read(_MAX_MANIFEST_BYTES))
                continue

            place, parts = _place_of(member.name, places, file)
            found[member.name] = {"bytes": member.size, "sha256": place.extract(source, parts)}

    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise no_backup(file, "it has no manifest of one")

    if manifest["version"] > VERSION:
        raise StorageVersionError(
            location=str(file), found=f"backup {manifest['version']}", known=f"backup {VERSION}"
        )

    return manifest, found


def _place_of(name: str, places: dict[str, _Place], file: Path) -> tuple[_Place, tuple[str, ...]]:
    parts = PurePosixPath(name).parts
    is_plain = "/".join(parts) == name and not {"..", "."} & set(parts)

    if not is_plain or len(parts) < 2 or parts[0] not in (STATE, ARTIFACTS) or "\0" in name:
        raise no_backup(file, f"{name[:200]!r} does not belong into one")

    if parts[0] not in places:
        raise InvalidArgumentError(
            field="FUMEHOOD_ARTIFACTS",
            value="no folder",
            allowed="a folder: the backup holds artifacts that lay in one",
        )

    return places[parts[0]], parts[1:]
