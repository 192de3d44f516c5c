"""The server's own record: what keys and strangers do cannot push out what the owner did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fumehood.server.server_audit import ServerAudit
from fumehood.values.audit import AuditLog


def kinds(log: AuditLog) -> Counter[str]:
    return Counter(entry.kind for entry in log.entries)


def left_out(log: AuditLog) -> Counter[str]:
    found: Counter[str] = Counter()

    for entry in log.entries:
        if entry.kind == "left_out":
            found[str(entry.fields["kind"])] += int(str(entry.fields["count"]))

    return found


def test_readers_of_a_share_do_not_crowd_out_the_rest() -> None:
    """A share's opening is noted once an hour; the rest is counted, with the share that it was of."""
    now = [0.0]
    audit = ServerAudit(clock=lambda: now[0])
    audit.note("key_made", key_id="k", by="owner", scopes=[])

    for _ in range(5000):
        audit.note("share_opened", share_id="s", of="k")

    audit.note("share_opened", share_id="other", of="k")
    log = audit.log()
    assert kinds(log) == {"key_made": 1, "share_opened": 2, "left_out": 1}
    assert log.entries[2].fields == {"kind": "share_opened", "count": 4999, "mostly_of": ["s"]}
    now[0] += 3600
    audit.note("share_opened", share_id="s", of="k")
    assert kinds(audit.log())["share_opened"] == 3
    assert audit.log().fault() is None


@pytest.mark.parametrize("keys", [1, 2000])
def test_keys_do_not_crowd_out_the_rest(tmp_path: Path, keys: int) -> None:
    """Neither in memory nor in the file, by whatever they may do themselves; what the owner does is all there."""
    audit = ServerAudit(str(tmp_path))
    audit.note("server_started", version="1", settings={})

    for number in range(2000):
        name = f"k{number % keys}"
        audit.note("login_begun", key_id=name, login_id="l", means="token")
        audit.note("share_made", share_id=f"s{number}", by=name)
        audit.note("share_opened", share_id=f"s{number}", of=name)

    audit.note("key_made", key_id="x", by="k0")

    for _ in range(200):
        audit.note("key_changed", key_id="k", by="owner")

    audit.log()
    found = kinds(log := audit.log())
    most = 50 if keys == 1 else 300
    assert log.dropped == 0
    assert found["login_begun"] in range(most, most + 5)
    assert found["share_made"] in range(most, most + 5)
    assert found["share_opened"] in range(300, 305)
    assert (found["server_started"], found["key_made"], found["key_changed"]) == (1, 1, 200)
    counted = left_out(log)
    assert all(
        found[kind] + counted[kind] == 2000 for kind in ("login_begun", "share_made", "share_opened")
    ), counted
    audit.close()
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == len(log.entries)


def test_readings_do_not_crowd_out_the_rest() -> None:
    """A reading tells what was left out so far, but not each of many while readers go on."""
    audit = ServerAudit(clock=lambda: 0.0)

    for _ in range(100):
        audit.note("share_opened", share_id="s", of="k")
        audit.log()

    assert kinds(audit.log()) == {"share_opened": 1, "left_out": 20}


def test_causes_beyond_a_thousand_are_counted_together() -> None:
    """A key can make shares without an end; what is kept of those that were left out does not grow with them."""
    audit = ServerAudit(clock=lambda: 0.0)

    for number in range(3000):
        audit.note("share_opened", share_id=f"s{number}", of="k")

    (told,) = [entry for entry in audit.log().entries if entry.kind == "left_out"]
    assert told.fields["count"] == 2700
    assert next(iter(told.fields["mostly_of"])) == "others"  # type: ignore[arg-type]
