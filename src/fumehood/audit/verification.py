"""Verification of an audit record in a file: every line is parsed strictly, and the chain computed again.

Runs in any process that has a record. The file may come from anywhere: sizes are bounded, and a line that is not
exactly in our format is a fault. A chain proves that nothing was changed within it; only a head that was kept elsewhere
proves that it is the true one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from fumehood.bounds import MIB
from fumehood.values.audit import GENESIS, TRUNCATED, AuditEntry, AuditHead, fault_of

MAX_LINE_BYTES = 1 * MIB
_KEYS = {"at", "fields", "hash", "kind", "previous", "sequence"}
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of a verification.

    Attributes:
        entries: How many entries are intact, from the first line on.
        dropped: How many entries before the first one are missing, according to the record.
        head: The last intact entry, or None.
        line: The line at which the chain breaks; None if it does not.
        reason: The fault in words; empty if there is none.
        later: How many entries came after the known head; None when none was given, or it is not there.
    """

    entries: int
    dropped: int = 0
    head: AuditHead | None = None
    line: int | None = None
    reason: str = ""
    later: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the record is intact, and contains the known head if one was given."""
        return not self.reason


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, each with its end; of one that is too long only the beginning."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def verify_lines(lines: Iterable[bytes], known_head: str | None = None) -> Verification:
    """Verify a record in JSON lines.

    Args:
        lines: Its lines, with or without their ends.
        known_head: The hash of an entry that the record must contain.
    """
    walk = _Walk(known_head)
    number = 0

    for number, line in enumerate(lines, start=1):
        reason = walk.take(line, number)

        if reason:
            return walk.result(number, reason)

    if not walk.entries:
        return walk.result(max(number, 1), "there is no entry")

    if known_head is not None and walk.later is None:
        reason = "no entry has the known head: the record was rewritten, or cut off before that entry"
        return walk.result(number, reason)

    return walk.result(None, "")


class _Walk:
    """The state of a verification up to a line."""

    def __init__(self, known_head: str | None) -> None:
        self.entries = 0
        self.later: int | None = None
        self._known_head = known_head
        self._dropped = 0
        self._previous = GENESIS
        self._last: AuditEntry | None = None

    def take(self, line: bytes, number: int) -> str:
        """Takes the next line; returns the fault in it."""
        if len(line) > MAX_LINE_BYTES:
            return f"it is longer than {MAX_LINE_BYTES:,} bytes"

        data = _read_json(line)

        if data is None:
            return "it is no JSON object, or only a part of one"

        if number == 1 and data.get("kind") == TRUNCATED and "hash" not in data:
            return self._begin_late(data)

        entry = _entry_of(data)

        if entry is None:
            return "it is no entry of an audit record"

        reason = fault_of(entry, self._dropped + self.entries, self._previous)

        if reason:
            return reason

        if entry.to_line().encode("ascii") != line.rstrip(b"\r\n"):
            return f"entry {entry.sequence} is not written as it was: spaces, order or escapes differ"

        self._count(entry)
        return ""

    def result(self, line: int | None, reason: str) -> Verification:
        """Returns the verification."""
        last = self._last
        return Verification(
            entries=self.entries,
            dropped=self._dropped,
            head=None if last is None else AuditHead(sequence=last.sequence, hash=last.hash),
            line=line,
            reason=reason,
            later=self.later,
        )

    def _begin_late(self, data: dict[str, Any]) -> str:
        dropped, previous = data.get("dropped"), data.get("previous")

        if set(data) != {"dropped", "kind", "previous"} or not _is_count(dropped) or not _is_hash(previous):
            return "it says in no valid way that entries are missing"

        assert isinstance(dropped, int)
        assert isinstance(previous, str)
        self._dropped, self._previous = dropped, previous

        if self._known_head == previous:
            self.later = 0

        return ""

    def _count(self, entry: AuditEntry) -> None:
        self._last, self._previous = entry, entry.hash
        self.entries += 1

        if self.later is not None:
            self.later += 1

        if entry.hash == self._known_head:
            self.later = 0


def _read_json(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None

    return data if isinstance(data, dict) else None


def _entry_of(data: dict[str, Any]) -> AuditEntry | None:
    is_entry = (
        set(data) == _KEYS
        and _is_count(data["sequence"])
        and isinstance(data["kind"], str)
        and isinstance(data["fields"], dict)
        and _is_hash(data["previous"])
        and _is_hash(data["hash"])
    )

    if not is_entry:
        return None

    try:
        at = datetime.fromisoformat(data["at"])
    except (TypeError, ValueError):
        return None

    return AuditEntry(**{**data, "at": at}) if at.tzinfo == UTC else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and _HEX.issuperset(value)
