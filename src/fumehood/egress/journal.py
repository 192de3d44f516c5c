"""What a sandbox did and tried on the network: every decision, the newest ones kept.

Names in it are canonical, or made visible: a guest writes no line of it as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from heapq import merge
from typing import Literal

from fumehood.text import visible_line
from fumehood.values.domain_names import Address, Target
from fumehood.values.network import EgressRecord

Kind = Literal["http", "connect", "socks"]

MAX_RECORDS = 1000


class Entry:
    """One connection that was allowed, counted while it lasts."""

    def __init__(self, record: EgressRecord) -> None:
        self._record = record
        self.sent = 0
        self.received = 0

    def note_address(self, address: Address) -> None:
        """It was dialled."""
        self._record = replace(self._record, address=str(address))

    @property
    def at(self) -> datetime:
        """When it was decided."""
        return self._record.at

    @property
    def record(self) -> EgressRecord:
        """The entry as it stands."""
        return replace(self._record, bytes_sent=self.sent, bytes_received=self.received)


class Journal:
    """The decisions of one sandbox's way out. Whatever is denied, and however often, leaves what was allowed in it.

    Args:
        sandbox_id: Whose.
    """

    def __init__(self, sandbox_id: str) -> None:
        # Told of each decision as it is made.
        self.on_decision: Callable[[EgressRecord], None] = lambda _: None
        self._sandbox_id = sandbox_id
        self._allowed: deque[Entry] = deque(maxlen=MAX_RECORDS)
        self._denied: deque[Entry] = deque(maxlen=MAX_RECORDS)

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """What is kept, the oldest first."""
        entries = merge(self._allowed, self._denied, key=lambda entry: entry.at)
        # Of the sandbox as it is called now, whatever it was called then.
        return tuple(replace(entry.record, sandbox_id=self._sandbox_id) for entry in entries)

    def rename(self, sandbox_id: str) -> None:
        """The sandbox is called something else from now on."""
        self._sandbox_id = sandbox_id

    def note_allowed(self, kind: Kind, target: Target, rule: str) -> Entry:
        """A connection may be made."""
        return self._add(kind, target.host, target.port, rule, is_allowed=True)

    def note_denied(self, kind: Kind, target: Target, reason: str) -> None:
        """A connection may not be made, or not go on."""
        self._add(kind, target.host, target.port, reason, is_allowed=False)

    def note_malformed(self, kind: Kind, asked: str, reason: str) -> None:
        """Nobody can say what was asked for."""
        self._add(kind, visible_line(asked), 0, reason, is_allowed=False)

    def _add(self, kind: Kind, name: str, port: int, rule: str, *, is_allowed: bool) -> Entry:
        entry = Entry(
            EgressRecord(
                at=datetime.now(UTC),
                sandbox_id=self._sandbox_id,
                kind=kind,
                name=name,
                address=None,
                port=port,
                verdict="allowed" if is_allowed else "denied",
                rule=visible_line(rule),
            )
        )
        (self._allowed if is_allowed else self._denied).append(entry)
        self.on_decision(entry.record)
        return entry
