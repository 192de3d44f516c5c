"""The audit entries, connections and events that a reader of a share may see: only the kinds and fields listed here.

Fields that are not listed are removed: keys, other sandboxes, other contexts, commands, paths, names of tools and of
environment variables. An entry of no context passes only if it is about the sandbox as a whole. Entries that lack
fields cannot be verified, so they have no hash here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fumehood.storage.shares import SharedView
from fumehood.values.audit import AuditEntry
from fumehood.values.charts import JsonValue
from fumehood.values.network import EgressRecord, Verdict
from fumehood.values.shares import SharedPart
from fumehood.values.watching import WatchEvent

_OF_EXECUTION = (
    "context language outcome error execution transactional transaction state_lost code_bytes "
    "wall_microseconds cpu_microseconds peak_memory_bytes bytes_out"
)
_OF_SANDBOX: Mapping[str, frozenset[str]] = {
    "created": frozenset({"limits"}),
    "paused": frozenset(),
    "resumed": frozenset(),
    "ended": frozenset({"reason"}),
}
_OF_CONTEXT: Mapping[str, frozenset[str]] = {
    "executed": frozenset(_OF_EXECUTION.split()),
    "context": frozenset({"verb", "context"}),
    "limit": frozenset({"execution", "limit"}),
}
# The part that an event of each type belongs to (None: each of them), and its fields. Other events are not sent.
_EVENTS: Mapping[str, tuple[SharedPart | None, str]] = {
    "execution_started": ("record", "execution_id context_id position code via started_at"),
    "output": ("record", "execution_id stream text at_seconds"),
    "result": ("record", "execution_id number is_main_result display_id parts is_update at_seconds"),
    "clear_output": ("record", "execution_id wait at_seconds"),
    "error": ("record", "execution_id error at_seconds"),
    "input_request": ("record", "execution_id request_id prompt is_password at_seconds"),
    "execution_finished": (
        "record",
        "execution_id context_id outcome usage execution_count state_lost position",
    ),
    "context_restarted": ("record", "context_id"),
    "egress": ("network", "record"),
    "changed": (None, ""),
    "ended": (None, "reason"),
    "gap": (None, "from to"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEntry:
    """The part of an audit entry that a share shows; it has no hash, and cannot be verified.

    Attributes:
        sequence: Its number in the whole record.
        at: When it was written (UTC).
        kind: The kind of event.
        fields: The details that are shown, by name.
    """

    sequence: int
    at: datetime
    kind: str
    fields: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConnection:
    """A connection that a sandbox made or tried to make, with the fields that a share shows.

    Attributes:
        at: When it was decided (UTC).
        kind: The protocol of the request: http, connect or socks.
        name: The requested host, a name or an address.
        port: The port.
        verdict: allowed or denied.
        rule: The rule that allowed it, or why it was denied.
        bytes_sent: Bytes sent out so far.
        bytes_received: Bytes received so far.
    """

    at: datetime
    kind: str
    name: str
    port: int
    verdict: Verdict
    rule: str
    bytes_sent: int
    bytes_received: int


_CONNECTION = frozenset(SharedConnection.__dataclass_fields__)


def shown_entries(entries: Sequence[AuditEntry], view: SharedView) -> Iterator[SharedEntry]:
    """Yields the entries of an audit record that a share shows: of its context and time."""
    # Limits are written before the end of their executions.
    executions = {entry.fields.get("execution") for entry in entries if _is_execution_shown(entry, view)} - {
        None
    }

    for entry in entries:
        if entry.kind == "executed":
            is_shown = _is_execution_shown(entry, view)
        elif entry.kind == "limit":
            is_shown = entry.fields.get("execution") in executions
        elif entry.kind == "context":
            is_shown = entry.fields.get("context") == view.context_id and view.covers(entry.at, entry.at)
        else:
            is_shown = entry.kind in _OF_SANDBOX and view.covers(entry.at, entry.at)

        if is_shown:
            names = _OF_CONTEXT.get(entry.kind) or _OF_SANDBOX[entry.kind]
            fields = _only(names, entry.fields)
            yield SharedEntry(sequence=entry.sequence, at=entry.at, kind=entry.kind, fields=fields)


def shown_connection(record: EgressRecord) -> SharedConnection:
    """Returns a connection without the id of its sandbox, and without the address that the host has dialled."""
    return SharedConnection(**{name: getattr(record, name) for name in _CONNECTION})


def part_of(event: WatchEvent) -> SharedPart | None:
    """Returns the part to which an event belongs; None if it belongs to all.

    Raises:
        KeyError: The event belongs to no part.
    """
    return _EVENTS[event.type][0]


def shown_event(event: WatchEvent) -> WatchEvent:
    """Returns an event of a shown part, without the fields that are hidden."""
    fields = _only(frozenset(_EVENTS[event.type][1].split()), event.fields)

    if isinstance(record := fields.get("record"), Mapping):
        fields["record"] = _only(_CONNECTION, record)

    return WatchEvent(type=event.type, seq=event.seq, fields=fields)


def _is_execution_shown(entry: AuditEntry, view: SharedView) -> bool:
    fields = entry.fields

    # Those that no record of a context has.
    if entry.kind != "executed" or fields.get("silent") or fields.get("handles"):
        return False

    took = fields.get("wall_microseconds")
    began_at = entry.at - timedelta(microseconds=took) if isinstance(took, int) else None
    return fields.get("context") == view.context_id and view.covers(began_at, entry.at)


def _only(names: frozenset[str], fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if name in names}
