"""The audit record of one sandbox while it grows: the newest entries in memory, all of them in a file if there is one.

Runs in the host process, on the engine's loop. To add an entry is one small JSON text and one hash, some microseconds.
The oldest entries leave the memory when a bound is passed; the chain goes on from them, and the log says how many they
are. What an entry says is bounded where it is made.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple

from fumehood.audit.entries import GENESIS, AuditEntry, AuditHead, AuditLog, digest_of, line_of
from fumehood.audit.files import AuditFile
from fumehood.charts import JsonValue
from fumehood.limits import KIB, MIB

MAX_ENTRIES = 4096
MAX_BYTES = 2 * MIB
# What the objects take around the text.
_ENTRY_BYTES = 1 * KIB


class _Kept(NamedTuple):
    """What an entry is made of when somebody wants to see it."""

    sequence: int
    at: datetime
    kind: str
    fields: dict[str, JsonValue]
    previous: str
    hash: str
    size_bytes: int

    def entry(self) -> AuditEntry:
        return AuditEntry(
            sequence=self.sequence,
            at=self.at,
            kind=self.kind,
            fields=self.fields,
            previous=self.previous,
            hash=self.hash,
        )


class AuditChain:
    """Entries, each chained to the one before.

    Args:
        file: Where every line goes as well, or None.
        max_entries: How many are kept in memory.
        max_bytes: What they may take there.
    """

    def __init__(
        self,
        file: AuditFile | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._file = file
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._kept: deque[_Kept] = deque()
        self._size_bytes = 0
        self._next = 0
        self._last = GENESIS

    @property
    def is_in_file(self) -> bool:
        """Whether what is added outlives this process."""
        return self._file is not None

    @property
    def head(self) -> AuditHead | None:
        """Where the record stands; None when it is empty."""
        return AuditHead(sequence=self._next - 1, hash=self._last) if self._next else None

    @property
    def size_bytes(self) -> int:
        """What the entries take in memory."""
        return self._size_bytes

    def log(self, sandbox_id: str) -> AuditLog:
        """Returns what is kept, as it stands, as the record of a sandbox."""
        entries = tuple(kept.entry() for kept in self._kept)
        return AuditLog(sandbox_id=sandbox_id, entries=entries, dropped=self._next - len(entries))

    def add(self, kind: str, fields: dict[str, JsonValue]) -> AuditHead:
        """Adds an entry, and returns where the record stands then."""
        at = datetime.now(UTC)
        sequence, previous = self._next, self._last
        # What `line_of` makes of the whole, and quicker; kinds are words of ours.
        text = (
            f'{{"at":"{at.isoformat(timespec="microseconds")}","fields":{line_of(fields)},"kind":"{kind}",'
            f'"previous":"{previous}","sequence":{sequence}}}'
        )
        self._last = digest_of(text)
        self._next += 1
        kept = _Kept(sequence, at, kind, fields, previous, self._last, len(text) + _ENTRY_BYTES)
        self._keep(kept)

        if self._file is not None:
            self._file.add(kept.entry().to_line())

        return AuditHead(sequence=sequence, hash=self._last)

    def close(self) -> None:
        """Nothing is added any more; what is kept can still be read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self._size_bytes += kept.size_bytes

        while len(self._kept) > self._max_entries or (
            self._size_bytes > self._max_bytes and len(self._kept) > 1
        ):
            self._size_bytes -= self._kept.popleft().size_bytes
