"""Migrations: from any older revision of a database to the newest, in one transaction, or not at all.

Runs in the server's process at its start, within a transaction that the caller has begun. A database with a revision
that this version does not know comes from a newer one: it is refused before anything is written.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from fumehood.errors import StorageVersionError

_FOLDER = pathlib.Path(__file__).with_name("migrations")
# Any number that nothing else in the same database locks: "fumehood" in ASCII.
_ADVISORY_LOCK = int.from_bytes(b"fumehood", "big", signed=True)


def known_revisions() -> list[str]:
    """Return the revisions of this version, oldest first."""
    revisions = ScriptDirectory.from_config(_config()).walk_revisions()
    return [revision.revision for revision in revisions][::-1]


def check_revisions(location: str, found: Iterable[str]) -> None:
    """Raise StorageVersionError if one of the revisions that a database has is not known here."""
    known = known_revisions()

    for revision in found:
        if revision not in known:
            raise StorageVersionError(location=location, found=revision, known=known[-1])


def migrate(connection: Connection, location: str) -> None:
    """Migrate the database of `connection` to the newest revision.

    Args:
        connection: In a transaction, which the caller commits.
        location: Its name in an error; without a password.
    """
    if connection.dialect.name == "postgresql":
        # Held until the transaction ends in any way; a second server waits here and then finds nothing to do.
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ADVISORY_LOCK})

    check_revisions(location, MigrationContext.configure(connection).get_current_heads())
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    # configparser reads the value, and interprets percent signs.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
