"""The growing audit record of one sandbox: the newest entries in memory, all of them in a file if there is one.

Adding an entry takes one small JSON text and one hash, some microseconds. The oldest entries are dropped from memory
when a bound is exceeded; the chain continues from them, and the log says how many they are. The fields of an entry
are bounded where it is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from fumehood.audit.files import AuditFile
from fumehood.bounds import KIB, MIB
from fumehood.values.audit import GENESIS, AuditEntry, AuditHead, AuditLog, ComingHead, digest_of, line_of
from fumehood.values.charts import JsonValue

MAX_ENTRIES = 4096
MAX_BYTES = 2 * MIB
# The size of the objects around the text.
_ENTRY_BYTES = 1 * KIB
# How many entries may wait for an idle moment.
_MAX_COMING = 8


class _Kept(NamedTuple):
    """The parts of an entry, from which it is made when it is read."""

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
        file: A file for every line as well, or None.
        max_entries: How many entries are kept in memory.
        max_bytes: Their maximum size in memory.
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
        self._coming: list[tuple[datetime, str, Callable[[], dict[str, JsonValue]], ComingHead]] = []

    @property
    def is_in_file(self) -> bool:
        """Whether the entries outlive this process."""
        return self._file is not None

    @property
    def head(self) -> AuditHead | None:
        """The newest entry; None when it is empty."""
        self.hash_pending()
        return AuditHead(sequence=self._next - 1, hash=self._last) if self._next else None

    @property
    def size_bytes(self) -> int:
        """The size of the entries in memory."""
        return self._size_bytes + len(self._coming) * 2 * _ENTRY_BYTES

    def log(self, sandbox_id: str) -> AuditLog:
        """Returns the kept entries as the record of a sandbox."""
        return self.reading(sandbox_id)()

    def reading(self, sandbox_id: str) -> Callable[[], AuditLog]:
        """Returns a function that makes the log of the entries so far.

        It may run in another thread while more are added.
        """
        self.hash_pending()
        kept, dropped = tuple(self._kept), self._next - len(self._kept)

        def read() -> AuditLog:
            entries = tuple(one.entry() for one in kept)
            return AuditLog(sandbox_id=sandbox_id, entries=entries, dropped=dropped)

        return read

    def add(self, kind: str, fields: dict[str, JsonValue]) -> AuditHead:
        """Adds an entry, and returns the new head."""
        self.hash_pending()
        return self._add(datetime.now(UTC), kind, fields)

    def add_later(self, kind: str, make: Callable[[], dict[str, JsonValue]]) -> AuditHead:
        """Adds an entry that `hash_pending` makes and hashes, or the first reader; with a file, it is made at once."""
        if self._file is not None:
            return self.add(kind, make())

        head = ComingHead(self._next + len(self._coming), self.hash_pending)
        self._coming.append((datetime.now(UTC), kind, make, head))

        if len(self._coming) >= _MAX_COMING:
            self.hash_pending()

        return head

    def hash_pending(self) -> None:
        """Makes and hashes the entries that were added for later."""
        coming, self._coming = self._coming, []

        for at, kind, make, head in coming:
            head.set_hash(self._add(at, kind, make()).hash)

    def _add(self, at: datetime, kind: str, fields: dict[str, JsonValue]) -> AuditHead:
        sequence, previous = self._next, self._last
        # Equal to `line_of` of the whole, and faster; kinds are words of ours.
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
        """Ends the record; the kept entries can still be read."""
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
