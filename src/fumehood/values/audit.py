"""Entries of an audit record: their fields, their canonical text, and the hash chain.

Plain values, used by callers and by all host code. The hash of an entry is computed over its canonical text, which
contains the hash of the previous entry. So no entry can be changed, left out or moved without a break in the chain
after it. In the canonical text all numbers are whole and all text is ASCII, so that every programming language produces
the same bytes. Nothing here knows a sandbox.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fumehood.values.charts import JsonValue

# The hash before the first entry.
GENESIS = "0" * 64
# The line in place of entries that were dropped.
TRUNCATED = "truncated"

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """The newest entry of an audit record at some time. A later record that lacks it was changed.

    Attributes:
        sequence: The number of that entry; the first is 0.
        hash: Its hash, SHA-256 in hexadecimal.
    """

    sequence: int
    hash: str

    def __str__(self) -> str:
        return self.hash


class ComingHead(AuditHead):
    """A head whose hash is computed when it is first read, or earlier by the record in an idle moment.

    Args:
        sequence: The number of the entry.
        find: Computes the hash and calls `settle`.
    """

    __slots__ = ("_find", "_found")

    _find: Callable[[], None]
    _found: str

    def __init__(self, sequence: int, find: Callable[[], None]) -> None:
        object.__setattr__(self, "sequence", sequence)
        object.__setattr__(self, "_find", find)
        object.__setattr__(self, "_found", "")

    @property
    def hash(self) -> str:
        """The hash."""
        if not self._found:
            self._find()

        return self._found

    def set_hash(self, found: str) -> None:
        """Set the hash."""
        object.__setattr__(self, "_found", found)
        object.__setattr__(self, "_find", None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AuditHead) and (self.sequence, self.hash) == (other.sequence, other.hash)

    def __hash__(self) -> int:
        return hash((self.sequence, self.hash))

    def __repr__(self) -> str:
        return f"AuditHead(sequence={self.sequence!r}, hash={self.hash!r})"

    def __reduce__(self) -> tuple[Callable[[int, str], AuditHead], tuple[int, str]]:
        return _head, (self.sequence, self.hash)


def _head(sequence: int, hash_: str) -> AuditHead:
    return AuditHead(sequence=sequence, hash=hash_)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of an audit record. Data of a guest in it is bounded, and its control characters are escaped.

    Attributes:
        sequence: Its number; the first is 0.
        at: When it was written, by the clock of the host (UTC).
        kind: The kind of event, such as `executed` or `egress`.
        fields: Its details: text, whole numbers, and lists and mappings of them.
        previous: The hash of the previous entry; 64 zeros for the first.
        hash: The hash of this entry: SHA-256 of all other fields, in hexadecimal.
    """

    sequence: int
    at: datetime
    kind: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict)
    previous: str = GENESIS
    hash: str = ""

    def to_line(self) -> str:
        """Return the entry as one line of JSON, without the line's end."""
        return line_of({**self._unsigned(), "hash": self.hash})

    def computed_hash(self) -> str:
        """Return the hash of its content; empty when the content is not valid for an entry."""
        try:
            return digest_of(line_of(self._unsigned()))
        except (TypeError, ValueError, RecursionError):
            return ""

    def _unsigned(self) -> dict[str, JsonValue]:
        return unsigned(self.sequence, self.at, self.kind, self.fields, self.previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFault:
    """A break in a chain.

    Attributes:
        place: The position of the entry in the log, counted from 1; in a file, its line.
        reason: The fault, in words.
    """

    place: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """The part of a sandbox's audit record that is kept in memory; a server's audit folder has the whole record.

    Attributes:
        sandbox_id: The sandbox.
        entries: The entries, the oldest first.
        dropped: How many entries before the first are not kept any more; the chain continues from the last of them.
    """

    sandbox_id: str
    entries: tuple[AuditEntry, ...] = ()
    dropped: int = 0

    @property
    def head(self) -> AuditHead | None:
        """Its newest entry, or None when there is none."""
        return (
            AuditHead(sequence=self.entries[-1].sequence, hash=self.entries[-1].hash)
            if self.entries
            else None
        )

    def fault(self, head: AuditHead | str | None = None) -> ChainFault | None:
        """Verify the chain, and return the first fault; None when there is none.

        Args:
            head: A head that was known before, such as `execution.audit_head`: it must be among the entries. Without
                one, a record that was rewritten as a whole cannot be distinguished from a true one.
        """
        found = first_fault(self.entries, self.dropped)

        if found is not None or head is None:
            return found

        return missing_head(self.entries, str(head))

    def to_jsonl(self) -> str:
        """Return the log as JSON lines, as `fumehood audit verify` reads them."""
        lines = [entry.to_line() for entry in self.entries]

        if self.dropped and self.entries:
            lines.insert(0, truncated_line(self.dropped, self.entries[0].previous))

        return "".join(f"{line}\n" for line in lines)


def unsigned(
    sequence: int, at: datetime, kind: str, fields: Mapping[str, JsonValue], previous: str
) -> dict[str, JsonValue]:
    """Return all fields of an entry except for its own hash, in the form that is hashed."""
    return {
        "at": at.isoformat(timespec="microseconds"),
        "fields": fields,  # type: ignore[dict-item]  # a mapping of JSON is JSON
        "kind": kind,
        "previous": previous,
        "sequence": sequence,
    }


def line_of(value: Mapping[str, JsonValue]) -> str:
    """Return plain data in its canonical form: keys sorted, no spaces, ASCII alone.

    Raises:
        ValueError: The data contains a number that is not finite.
    """
    return _encode(value)


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def truncated_line(dropped: int, previous: str) -> str:
    """Return the line that replaces a number of dropped entries, of which the last has this hash."""
    return line_of({"dropped": dropped, "kind": TRUNCATED, "previous": previous})


def first_fault(entries: Iterable[AuditEntry], dropped: int = 0) -> ChainFault | None:
    """Return the first fault of a chain; None when there is none. `dropped` entries are missing before it."""
    expected: str | None = None if dropped else GENESIS
    sequence = dropped

    for place, entry in enumerate(entries, start=1):
        reason = fault_of(entry, sequence, expected)

        if reason:
            return ChainFault(place=place, reason=reason)

        expected, sequence = entry.hash, sequence + 1

    return None


def fault_of(entry: AuditEntry, sequence: int, previous: str | None) -> str:
    """Return the fault of an entry by its expected position in the chain; empty when there is none.

    Args:
        entry: The entry.
        sequence: The expected number.
        previous: The expected hash of the entry before; None if it is not known.
    """
    if entry.hash != entry.computed_hash():
        return f"entry {entry.sequence} was changed: its hash does not fit what it says"

    if entry.sequence == sequence + 1:
        return f"entry {sequence} is missing"

    if entry.sequence > sequence:
        return f"entries {sequence} to {entry.sequence - 1} are missing"

    if entry.sequence < sequence:
        return f"entry {entry.sequence} stands where entry {sequence} should be: repeated, or out of order"

    if previous is not None and entry.previous != previous:
        return f"entry {entry.sequence} does not follow the one before it: one of the two was replaced"

    return ""


def missing_head(entries: Iterable[AuditEntry], head: str) -> ChainFault | None:
    """Return the fault of a chain that has no entry with this hash; None when it has."""
    hashes = [entry.hash for entry in entries]

    if head in hashes:
        return None

    return ChainFault(
        place=len(hashes),
        reason="no entry has the known head: the record was rewritten, or cut off before that entry",
    )
