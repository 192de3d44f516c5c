"""The index of the records of ended sandboxes: the fields that eviction and paging need, and no text of a guest.

Runs in the host process, in the thread for kept records alone. It touches no file: it determines which record is
removed next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from fumehood.errors import InvalidArgumentError

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """How much is kept; beyond a bound, the oldest record of the key that uses most is removed first.

    Attributes:
        max_bytes: The most bytes of all files together.
        max_count: The most records.
        max_seconds: How long each record is kept, counted from the end of its sandbox.
    """

    max_bytes: int
    max_count: int
    max_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRecord:
    """A record that is kept.

    Attributes:
        id: The id of its sandbox.
        owner: The key that owned it.
        ended_at: When it ended, in seconds of the epoch.
        size_bytes: The size of its file.
    """

    id: str
    owner: str
    ended_at: float
    size_bytes: int

    @property
    def place(self) -> tuple[int, str]:
        """Its position in the order of end times, valid even after the record was removed."""
        return round(self.ended_at * _MICROSECONDS), self.id

    @property
    def cursor(self) -> str:
        """Its position as the cursor of a page that ends with this record."""
        at, name = self.place
        return f"{at}.{name}"


@dataclass(slots=True)
class _Share:
    """The records of one key, the oldest first."""

    records: OrderedDict[str, IndexedRecord] = field(default_factory=OrderedDict)
    size_bytes: int = 0


class RecordIndex:
    """The records that are kept.

    Args:
        bounds: The bounds on the number, size and age of records.
    """

    def __init__(self, bounds: RecordBounds) -> None:
        self._bounds = bounds
        # The oldest end first, within the moment that writing takes.
        self._all: OrderedDict[str, IndexedRecord] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._size_bytes = 0

    def add(self, record: IndexedRecord) -> None:
        """Adds a record, in place of one with the same id."""
        self.pop(record.id)
        share = self._shares.setdefault(record.owner, _Share())
        self._all[record.id] = share.records[record.id] = record
        share.size_bytes += record.size_bytes
        self._size_bytes += record.size_bytes

    def get(self, sandbox_id: str) -> IndexedRecord | None:
        """Returns a record."""
        return self._all.get(sandbox_id)

    def pop(self, sandbox_id: str) -> IndexedRecord | None:
        """Removes a record, and returns it."""
        if (record := self._all.pop(sandbox_id, None)) is None:
            return None

        share = self._shares[record.owner]
        del share.records[sandbox_id]
        share.size_bytes -= record.size_bytes
        self._size_bytes -= record.size_bytes

        if not share.records:
            del self._shares[record.owner]

        return record

    def surplus(self) -> str | None:
        """Returns the record to remove next because there are too many or they are too large.

        Returns None if within the bounds.
        """
        if len(self._all) > self._bounds.max_count:
            most = max(len(share.records) for share in self._shares.values())
            return self._oldest_of(share for share in self._shares.values() if len(share.records) == most)

        if self._size_bytes > self._bounds.max_bytes:
            most = max(share.size_bytes for share in self._shares.values())
            return self._oldest_of(share for share in self._shares.values() if share.size_bytes == most)

        return None

    def outdated(self, now: float) -> str | None:
        """Returns the id of the oldest record if it is older than `max_seconds`; otherwise None."""
        first = next(iter(self._all.values()), None)
        return first.id if first is not None and first.ended_at < now - self._bounds.max_seconds else None

    def before(self, cursor: str | None, owner: str | None) -> list[IndexedRecord]:
        """Returns the records of an owner (None: of all owners) before a cursor; the one that ended last comes first.

        Raises:
            InvalidArgumentError: The cursor is malformed.
        """
        place = None if cursor is None else _place(cursor)
        found = [
            record
            for record in self._all.values()
            if owner in (None, record.owner) and (place is None or record.place < place)
        ]
        return sorted(found, key=lambda record: record.place, reverse=True)

    @staticmethod
    def _oldest_of(shares: Iterator[_Share]) -> str:
        oldest = (next(iter(share.records.values())) for share in shares)
        return min(oldest, key=lambda record: record.place).id


def _place(cursor: str) -> tuple[int, str]:
    at, _, name = cursor.partition(".")

    try:
        return int(at), name
    except ValueError:
        raise InvalidArgumentError(
            field="cursor", value=cursor, allowed="`next_cursor` of the page before"
        ) from None
