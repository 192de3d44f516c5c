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

Scope = Literal["execute", "sandboxes", "keys", "metrics", "watch"]
SCOPES: tuple[Scope, ...] = ("execute", "sandboxes", "keys", "metrics", "watch")
# In place of a key: those of all keys.
ALL = ""
OWNER_ID = "owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated caller of a request.

    Attributes:
        key_id: The id of the key, which owns its sandboxes; `owner` for the server's own token.
        scopes: Its permissions: execute (stateless runs), sandboxes, keys, metrics (those of the server), watch.
        policy: Its quotas and limits.
        watched: With `watch`: the key that made this one, whose sandboxes it may look at; empty: the sandboxes of all
            keys, since the server's owner made it.
    """

    key_id: str
    scopes: frozenset[str] = frozenset(SCOPES)
    policy: KeyPolicy = field(default_factory=KeyPolicy)
    watched: str = ALL

    @property
    def only_watches(self) -> bool:
        """True for a key that may only look at sandboxes of another key, and has none of its own."""
        return "watch" in self.scopes and "sandboxes" not in self.scopes

    @property
    def sees_all(self) -> bool:
        """True if it sees the sandboxes of all keys."""
        return self.is_owner or (self.only_watches and self.watched == ALL)

    @property
    def seen_id(self) -> str:
        """The one key whose sandboxes it sees, unless it sees all."""
        return self.watched if self.only_watches else self.key_id

    def sees(self, owner: str) -> bool:
        """Returns whether it sees the sandboxes of this owner."""
        return self.sees_all or owner == self.seen_id

    @property
    def is_owner(self) -> bool:
        """True for the server's own token, which sees the sandboxes of all keys."""
        return self.key_id == OWNER_ID

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError if the principal lacks this scope, which it must keep until the end of its request."""
        # What may be done may be looked at.
        if scope not in self.scopes and not (scope == "watch" and "sandboxes" in self.scopes):
            error = ForbiddenError(reason=f"it lacks the scope {scope!r}")
            events.KEY_REFUSED.log(key_id=self.key_id, reason=error.log_reason)
            raise error

        note_scope(scope)

    def require_look(self) -> None:
        """Raises ForbiddenError if the principal may not look at sandboxes."""
        self.require("watch" if self.only_watches else "sandboxes")
