"""The records of sandboxes that have ended: as many as fit, however often somebody reads them."""

from __future__ import annotations

import pytest

from fumehood.audit.chain import AuditChain
from fumehood.engine.audit_trail import AuditTrail, EndedTrails

BOUND_BYTES = 100_000


def ended_trail(text: str) -> AuditTrail:
    """The record of a sandbox in which nothing has happened."""
    trail = AuditTrail()
    trail.begin(AuditChain(), lambda: {"text": text})
    trail.end("killed", "")
    return trail


@pytest.mark.parametrize("text", ["short", "long" * 1_000])
def test_reading_records_changes_nothing_of_how_many_are_kept(text):
    """What was put off until somebody reads it makes a record another size than the one that it was counted for."""
    kept = {True: EndedTrails(BOUND_BYTES), False: EndedTrails(BOUND_BYTES)}

    for number in range(1_000):
        for is_read, trails in kept.items():
            trail = ended_trail(text)
            trails.add(str(number), trail)

            if is_read:
                assert len(trail.read(str(number)).entries) == 2

    found = [[number for number in range(1_000) if trails.find(str(number))] for trails in kept.values()]
    assert found[0] == found[1]
    assert 10 < len(found[0]) < 100
