"""The log of a sandbox's connections: every decision, the newest ones kept.

Names in it are canonical, or escaped: a guest cannot forge a line of it.
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
    """One allowed connection, counted while it is open."""

    def __init__(self, record: EgressRecord) -> None:
        self._record = record
        self.sent = 0
        self.received = 0

    def note_address(self, address: Address) -> None:
        """Notes the address that was dialled."""
        self._record = replace(self._record, address=str(address))

    @property
    def at(self) -> datetime:
        """The time of the decision."""
        return self._record.at

    @property
    def record(self) -> EgressRecord:
        """The current record of the entry."""
        return replace(self._record, bytes_sent=self.sent, bytes_received=self.received)


class Journal:
    """The decisions of one sandbox's gateway. Denied connections, however many, never displace allowed ones.

    Args:
        sandbox_id: The sandbox.
    """

    def __init__(self, sandbox_id: str) -> None:
        # Called with each decision when it is made.
        self.on_decision: Callable[[EgressRecord], None] = lambda _: None
        self._sandbox_id = sandbox_id
        self._allowed: deque[Entry] = deque(maxlen=MAX_RECORDS)
        self._denied: deque[Entry] = deque(maxlen=MAX_RECORDS)

    @property
    def records(self) -> tuple[EgressRecord, ...]:
        """The kept decisions, the oldest first."""
        entries = merge(self._allowed, self._denied, key=lambda entry: entry.at)
        # With the current id of the sandbox, whatever it was then.
        return tuple(replace(entry.record, sandbox_id=self._sandbox_id) for entry in entries)

    def rename(self, sandbox_id: str) -> None:
        """Changes the id of the sandbox."""
        self._sandbox_id = sandbox_id

    def note_allowed(self, kind: Kind, target: Target, rule: str) -> Entry:
        """Notes a connection that was allowed."""
        return self._add(kind, target.host, target.port, rule, is_allowed=True)

    def note_denied(self, kind: Kind, target: Target, reason: str) -> None:
        """Notes a connection that was denied or closed by the policy."""
        self._add(kind, target.host, target.port, reason, is_allowed=False)

    def note_malformed(self, kind: Kind, asked: str, reason: str) -> None:
        """Notes a request that could not be parsed."""
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
