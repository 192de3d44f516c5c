"""The audit record of a server: logins, rights granted and revoked, sandboxes that its owner killed for others.

Runs on the server's loop. A hash chain like the record of a sandbox: the newest entries in memory, all of them in a
file where the server has an audit folder. A chain begins at each start. Entries hold ids, never tokens, secrets or text
of a guest. Actions of the owner are always recorded. Entries about keys and readers of shares are bounded and only
counted beyond that, so that these cannot fill the file, and would need days to displace earlier entries from memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from cachetools import LRUCache

from fumehood.audit.chain import AuditChain
from fumehood.audit.files import AuditFolder
from fumehood.bounds import MIB
from fumehood.server.principal import OWNER_ID
from fumehood.token_bucket import TokenBucket
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
    "record_deleted",
]
# With its fields an entry is smaller: the number of entries is the bound.
_MAX_BYTES = 16 * MIB
_REMEMBERED = 10_000
_HOUR_SECONDS = 3600.0
# How many of the causes of what was left out an entry names, and how many are counted apart: shares can be many.
_MOST_NAMED = 10
_MOST_COUNTED = 1_000
_OTHERS = "others"
_TELLINGS_AT_ONCE, _TELLINGS_PER_HOUR = 20, 6


class _Bound(NamedTuple):
    """How many entries may be recorded at once, and how many per hour in the long run: for one cause, and for all."""

    at_once: int
    per_hour: int
    at_once_of_all: int
    per_hour_of_all: int


# A cause is a key, or of openings the share. Each family has bounds of its own: a key that logs in without an end
# cannot hide by it that it has made another one.
_BOUNDS: Mapping[str, _Bound] = {
    "login": _Bound(50, 10, 300, 30),
    "key": _Bound(50, 10, 300, 30),
    "share": _Bound(50, 10, 300, 30),
    "opening": _Bound(1, 1, 300, 30),
}


class ServerAudit:
    """The record.

    Args:
        folder: The folder of its file; without one, the record ends with the server.
        clock: Gives seconds.

    Raises:
        InvalidArgumentError: The folder cannot be used.
        OSError: The file cannot be made.
    """

    def __init__(self, folder: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = AuditFolder(folder).open(f"{SERVER_ID}-{began}") if folder else None
        self._chain = AuditChain(file, max_bytes=_MAX_BYTES)
        self._families = {name: _Family(bound, clock) for name, bound in _BOUNDS.items()}
        self._left_out: dict[str, Counter[str]] = {}
        self._tellings = TokenBucket(_TELLINGS_AT_ONCE, _TELLINGS_PER_HOUR / _HOUR_SECONDS, clock)

    def note(self, kind: Kind, **fields: JsonValue) -> None:
        """Adds an entry; entries of a key or a reader beyond their bound are only counted."""
        family, cause = _family_and_cause(kind, fields)

        if cause != OWNER_ID and not self._families[family].take(cause):
            self._count_left_out(kind, cause)
            return

        self._tell_left_out(kind)
        self._chain.add(kind, fields)

    def log(self) -> AuditLog:
        """Returns the newest entries of the server's audit record, which are kept in memory."""
        return self.reading()()

    def reading(self) -> Callable[[], AuditLog]:
        """Returns a function that makes the log of the entries so far; it may run in another thread."""
        # Each reading may add entries, so these are bounded too.
        if self._left_out and self._tellings.take():
            self._tell_all_left_out()

        return self._chain.reading(SERVER_ID)

    def close(self) -> None:
        """Records how many entries were left out, and closes the record."""
        self._tell_all_left_out()
        self._chain.close()

    def _count_left_out(self, kind: str, cause: str) -> None:
        causes = self._left_out.setdefault(kind, Counter())
        causes[cause if cause in causes or len(causes) < _MOST_COUNTED else _OTHERS] += 1

    def _tell_all_left_out(self) -> None:
        for kind in tuple(self._left_out):
            self._tell_left_out(kind)

    def _tell_left_out(self, kind: str) -> None:
        causes = self._left_out.pop(kind, None)

        if causes:
            named: list[JsonValue] = [name for name, _ in causes.most_common(_MOST_NAMED)]
            self._chain.add("left_out", {"kind": kind, "count": causes.total(), "mostly_of": named})


class _Family:
    """Bounds the entries of one kind: for each cause, and for all causes together."""

    def __init__(self, bound: _Bound, clock: Callable[[], float]) -> None:
        self._bound = bound
        self._clock = clock
        self._all = TokenBucket(bound.at_once_of_all, bound.per_hour_of_all / _HOUR_SECONDS, clock)
        # A cause that is forgotten starts afresh; the bound of all holds for it.
        self._of_causes: LRUCache[str, TokenBucket] = LRUCache(_REMEMBERED)

    def take(self, cause: str) -> bool:
        """Returns whether an entry with this cause may be recorded; if so, it is counted."""
        bucket = self._of_causes.get(cause)

        if bucket is None:
            bucket = TokenBucket(self._bound.at_once, self._bound.per_hour / _HOUR_SECONDS, self._clock)
            self._of_causes[cause] = bucket

        return bucket.take() and self._all.take()


def _family_and_cause(kind: Kind, fields: Mapping[str, JsonValue]) -> tuple[str, str]:
    """Returns the family of an entry, and the key or the share that has caused it."""
    if kind in ("server_started", "sandbox_killed", "record_deleted"):
        return "", OWNER_ID

    if kind == "share_opened":
        return "opening", str(fields["share_id"])

    family = kind.partition("_")[0]
    return family, str(fields["key_id" if family == "login" else "by"])
