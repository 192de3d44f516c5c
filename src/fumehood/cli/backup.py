"""`fumehood backup` and `fumehood restore`: the state of a server as one file, and back.

Runs in the user's terminal, as the user of the server, and asks no server for anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fumehood.assemble import artifacts_location
from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord
from fumehood.cli.terminal import note
from fumehood.refusals import naming_arguments
from fumehood.server.settings import load_settings

if TYPE_CHECKING:
    from fumehood.storage.backup import Backup, ServerFiles


def _backup(options: Options) -> int:
    require_extra("server", "sqlalchemy", "alembic", command="backup")
    # Imported late: only these two commands and a server need a database.
    from fumehood.storage.backup import make_backup

    with naming_arguments({"state_folder": "--state-folder"}):
        _tell("written", make_backup(_places(options), Path(options.file)))

    return 0


def _restore(options: Options) -> int:
    require_extra("server", "sqlalchemy", "alembic", command="restore")
    from fumehood.storage.restore import restore_backup

    places = _places(options)

    with naming_arguments({"state_folder": "--state-folder", "database_url": "the database"}):
        restored = restore_backup(Path(options.file), places)

    _tell(f"restored to {places.state}", restored)
    return 0


def _places(options: Options) -> ServerFiles:
    from fumehood.storage.backup import ServerFiles

    flags = {"state_folder": options.state_folder}
    settings, _ = load_settings(flags, environ=os.environ, file=options.config)
    artifacts = artifacts_location()
    return ServerFiles(
        state=settings.state_path,
        database_url=settings.database_url,
        artifacts=None if "://" in artifacts else Path(artifacts),
    )


def _tell(done: str, backup: Backup) -> None:
    size_mb = backup.size_bytes / 1e6
    note(f"{done}: {backup.files} files, {size_mb:.1f} MB, of fumehood {backup.version}")


_PARAMS = [
    Argument("file", metavar="FILE", about="the archive"),
    Option(
        ["--state-folder"],
        type=PathWord(is_folder=True),
        metavar="DIR",
        help="the state folder of the server (default: that of `fumehood serve`)",
    ),
    Option(["--config"], type=PathWord(), metavar="FILE", help="TOML file with the server's settings"),
]
BACKUP = Command(
    "backup",
    _backup,
    brief="write all that a server keeps to a file, while it runs",
    about="Write the database, the files, the keys and the secrets of a server, and the artifacts of this user, to one "
    "archive that only this user can read. The server may run meanwhile. Sandboxes are not part of it.",
    params=_PARAMS,
)
RESTORE = Command(
    "restore",
    _restore,
    brief="restore a server from such a file, into an empty folder",
    about="Restore what `fumehood backup` has written into a state folder that is empty or not there yet, and the "
    "database to where the settings say that it is; nothing is overwritten, and a backup of a newer version is "
    "refused. As root, what is restored belongs to the user that owns the folder.",
    params=_PARAMS,
)
