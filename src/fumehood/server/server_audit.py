"""The audit record of a server itself: logins, rights given and taken, and sandboxes that its owner killed for others.

Runs on the server's loop. A hash chain like the record of a sandbox: the newest entries in memory, all of them in a
file where the server has an audit folder. A chain begins at each start. Entries hold ids, never tokens, secrets or text
of a guest; what a key does with its own sandboxes is in their records, so that it cannot crowd these entries out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from fumehood.audit.chain import AuditChain
from fumehood.audit.files import AuditFolder
from fumehood.values.audit import AuditLog
from fumehood.values.charts import JsonValue

# In place of a sandbox's id, which has 32 characters.
SERVER_ID = "server"
Kind = Literal[
    "server_started",
    "login_begun",
    "login_ended",
    "key_made",
    "key_changed",
    "key_rotated",
    "key_revoked",
    "share_made",
    "share_opened",
    "share_revoked",
    "sandbox_killed",
]


class ServerAudit:
    """The record.

    Args:
        folder: Where its file is made; without one the record ends with the server.

    Raises:
        InvalidArgumentError: The folder cannot be used.
        OSError: The file cannot be made.
    """

    def __init__(self, folder: str | None = None) -> None:
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = AuditFolder(folder).open(f"{SERVER_ID}-{began}") if folder else None
        self._chain = AuditChain(file)

    def note(self, kind: Kind, **fields: JsonValue) -> None:
        """Adds an entry."""
        self._chain.add(kind, fields)

    def log(self) -> AuditLog:
        """Returns the entries that are in memory."""
        return self._chain.log(SERVER_ID)

    def close(self) -> None:
        """Ends the record."""
        self._chain.close()
