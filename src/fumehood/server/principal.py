"""The principal of a request: the owner of the server, or the holder of a key.

Only the authenticator makes principals; the rights of a request come from its principal, never from the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fumehood.errors import ForbiddenError
from fumehood.log import events
from fumehood.server.admission import note_scope
from fumehood.storage.policy import KeyPolicy

Scope = Literal["execute", "sandboxes", "keys", "metrics"]
SCOPES: tuple[Scope, ...] = ("execute", "sandboxes", "keys", "metrics")
OWNER_ID = "owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated caller of a request.

    Attributes:
        key_id: Name of the key; `owner` for the server's own token. Sandboxes belong to it.
        scopes: Its permissions: execute (stateless runs), sandboxes, keys, metrics (those of the server).
        policy: Its quotas and limits.
    """

    key_id: str
    scopes: frozenset[str] = frozenset(SCOPES)
    policy: KeyPolicy = field(default_factory=KeyPolicy)

    @property
    def is_owner(self) -> bool:
        """True for the server's own token, which sees the sandboxes of all keys."""
        return self.key_id == OWNER_ID

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError if the principal lacks this scope, which is required until the end of its request."""
        if scope not in self.scopes:
            error = ForbiddenError(reason=f"it lacks the scope {scope!r}")
            events.KEY_REFUSED.log(key_id=self.key_id, reason=error.message)
            raise error

        note_scope(scope)
