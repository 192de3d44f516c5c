"""Entries and their chain: what was changed, left out, moved or added shows, wherever it stands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fumehood.audit.chain import AuditChain
from fumehood.values.audit import GENESIS, AuditEntry, AuditLog, ChainFault
from fumehood.values.codec import read_value
from fumehood.values.plain_data import as_data


def record(count: int = 5, **bounds: int) -> AuditChain:
    chain = AuditChain(**bounds)

    for number in range(count):
        chain.add("executed", {"number": number, "text": "ä\x1b[2J", "list": [1, "two"]})

    return chain


def test_anybody_can_compute_a_hash():
    """The canonical text is JSON with sorted keys and no spaces, in ASCII: a few lines of any language."""
    entry = record().log("box").entries[3]
    said = json.loads(entry.to_line())
    own = said.pop("hash")
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    assert own == hashlib.sha256(text.encode("ascii")).hexdigest() == entry.hash
    assert entry.to_line().isascii()
    assert "\x1b" not in entry.to_line()


def test_entries_are_chained_from_the_first():
    entries = record().log("box").entries
    assert [entry.sequence for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry.previous for entry in entries] == [GENESIS, *(entry.hash for entry in entries[:-1])]
    assert record().log("box").fault() is None
    assert AuditLog(sandbox_id="empty").fault() is None


def test_adding_says_where_the_record_stands():
    chain = record()
    head = chain.add("executed", {"last": True})
    assert head == chain.log("box").head
    assert str(head) == chain.log("box").entries[-1].hash
    assert chain.log("box").fault(head) is None
    assert AuditChain().log("box").head is None


def changed(entries, place, **fields):
    return (*entries[:place], replace(entries[place], **fields), *entries[place + 1 :])


def rehashed(entry: AuditEntry, **fields) -> AuditEntry:
    other = replace(entry, **fields)
    return replace(other, hash=other.computed_hash())


TAMPERINGS = {
    "a field": lambda e: changed(e, 2, fields={"number": 7}),
    "the kind": lambda e: changed(e, 2, kind="nothing"),
    "the time": lambda e: changed(e, 2, at=datetime.now(UTC)),
    "the number": lambda e: changed(e, 2, sequence=9),
    "the hash": lambda e: changed(e, 2, hash="f" * 64),
    "a field, with a hash that fits": lambda e: (*e[:2], rehashed(e[2], fields={}), *e[3:]),
    "one left out": lambda e: (*e[:2], *e[3:]),
    "two changed places": lambda e: (e[0], e[2], e[1], *e[3:]),
    "one twice": lambda e: (*e[:3], *e[2:]),
    "one of another record": lambda e: (*e[:2], record().log("box").entries[2], *e[3:]),
    "the first left out": lambda e: e[1:],
    "what no JSON holds": lambda e: changed(e, 2, fields={"number": float("nan")}),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_whatever_is_changed_shows(name):
    entries = TAMPERINGS[name](record().log("box").entries)
    fault = AuditLog(sandbox_id="box", entries=entries).fault()
    assert fault is not None
    assert fault.place <= 4
    assert fault.reason


def test_a_record_that_was_rewritten_as_a_whole_needs_a_known_head():
    """A chain alone proves nothing against who can write all of it: a head that was kept elsewhere does."""
    true, forged = record().log("box"), record().log("box")
    kept = true.entries[2].hash
    assert forged.fault() is None
    assert true.fault(kept) is None
    fault = forged.fault(kept)
    assert isinstance(fault, ChainFault)
    assert "known head" in fault.reason
    cut_off = AuditLog(sandbox_id="box", entries=true.entries[:2])
    assert cut_off.fault() is None
    assert cut_off.fault(kept) is not None


def test_memory_is_bounded_and_the_chain_goes_on():
    log = record(100, max_entries=10).log("box")
    assert (log.dropped, len(log.entries)) == (90, 10)
    assert log.entries[0].sequence == 90
    assert log.fault(log.head) is None
    assert replace(log, dropped=89).fault() is not None


def test_the_size_is_bounded_too():
    chain = AuditChain(max_bytes=20_000)

    for _ in range(50):
        chain.add("executed", {"text": "x" * 2_000})

    assert chain.size_bytes <= 20_000
    assert chain.log("box").dropped + len(chain.log("box").entries) == 50
    assert chain.log("box").fault() is None


def test_one_entry_stays_however_large():
    chain = AuditChain(max_bytes=10)
    chain.add("executed", {"text": "x" * 100})
    assert len(chain.log("box").entries) == 1


def test_a_log_crosses_a_process_border_whole():
    log = record(100, max_entries=10).log("box")
    there = read_value(AuditLog, json.loads(json.dumps(as_data(log))))
    assert there == log
    assert there.fault(log.head) is None
