"""What a share shows of records: the listed kinds and fields, of its context and time, and nothing that is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fumehood.server.shared_records import part_of, shown_connection, shown_entries, shown_event
from fumehood.storage.shares import SharedView
from fumehood.values.audit import AuditEntry
from fumehood.values.network import EgressRecord
from fumehood.values.watching import WatchEvent

_HIDDEN = (
    "command pty file_out file_in file_changed egress network tool_call refused_call telemetry "
    "left_out failed policy checkpoint forked adopted judge saved executing new_kind"
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def _entries(*given: tuple[str, dict[str, Any]]) -> list[AuditEntry]:
    return [
        AuditEntry(sequence=at, at=_START + timedelta(seconds=at), kind=kind, fields=fields, hash="a" * 64)
        for at, (kind, fields) in enumerate(given)
    ]


def _ran(name: str, context: str = "default", seconds: int = 0, **given: Any) -> tuple[str, dict[str, Any]]:
    fields = {"execution": name, "context": context, "wall_microseconds": seconds * 1_000_000}
    return "executed", {**fields, "code_sha256": "secret", "new_field": "secret", **given}


def _shown(entries: list[AuditEntry], **given: Any) -> list[Any]:
    view = SharedView(sandbox_id="box", context_id="default", shows=("audit",), **given)
    return [
        one.fields.get("execution", one.kind)
        for one in shown_entries(entries, view)
        if "secret" not in str(one)
    ]


def test_entries_of_a_share_are_those_of_its_context_and_time():
    """An execution is shown where its cell is; a limit with its execution, which is written after it."""
    entries = _entries(
        ("created", {"limits": {}, "owner": "secret"}),
        ("limit", {"execution": "one", "limit": "wall_seconds"}),
        _ran("one"),
        ("limit", {"execution": "aside", "limit": "wall_seconds"}),
        _ran("aside", "other"),
        _ran("silent", silent=True),
        _ran("button", handles="comm"),
        ("context", {"verb": "restart_context", "context": "default"}),
        ("context", {"verb": "restart_context", "context": "other"}),
        _ran("long", seconds=8),
        *[(kind, {"path": "secret", "execution": "one"}) for kind in _HIDDEN.split()],
        ("paused", {"by": "secret"}),
        ("ended", {"reason": "killed", "breach": "secret"}),
    )
    assert _shown(entries) == ["created", "one", "one", "context", "long", "paused", "ended"]
    start = _START.timestamp()
    assert _shown(entries, from_at=start + 1) == ["one", "one", "context", "long", "paused", "ended"]
    assert _shown(entries, from_at=start + 2) == ["one", "one", "context", "paused", "ended"]
    assert _shown(entries, until_at=start + 8) == ["created", "one", "one", "context"]


def test_events_of_a_share_have_listed_fields():
    """Also within a connection; events of tools, security and forks belong to no part."""
    record: Any = {"name": "example.org", "port": 443, "sandbox_id": "box", "address": "192.0.2.1"}
    event = WatchEvent(type="egress", seq=3, fields={"record": record, "by": "ada"})
    assert part_of(event) == "network"
    assert shown_event(event).plain_data() == {
        "type": "egress",
        "seq": 3,
        "record": {"name": "example.org", "port": 443},
    }
    connection = shown_connection(
        EgressRecord(at=_START, kind="connect", verdict="allowed", rule="", **record)
    )
    assert {"sandbox_id", "address"}.isdisjoint(connection.__dataclass_fields__)
    assert (connection.name, connection.port) == ("example.org", 443)
    changed = shown_event(WatchEvent(type="changed", fields={"sandbox": {"id": "box"}}))
    assert changed.fields == {}

    for kind in ("tool_call", "security_event", "forked", "adopted", "commit_request", "new_kind"):
        with pytest.raises(KeyError):
            part_of(WatchEvent(type=kind))
