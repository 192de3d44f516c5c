"""Differing files, in one reply: as many as it takes, the others are counted."""

from __future__ import annotations

from fumehood_guest.init.snapshots import _counted
from fumehood_wire.frames import encode
from fumehood_wire.messages import MAX_CHANGED_FILES


def _files(count, name):
    return [{"path": f"/home/user/{name}{number}", "size_bytes": 1} for number in range(count)]


def test_no_more_are_named_than_a_reply_takes():
    """Long paths take more of it, and bytes that are no text even more."""
    found = {
        "created": _files(300, "a" * 3500),
        "modified": _files(50, "\udcff" * 3500),
        "deleted": _files(3, "b"),
    }
    counted = _counted(found)
    named = {kind: len(counted[kind]) for kind in found}
    assert len(encode({"type": "reply", "value": counted})) < 1 << 20
    assert counted["created"] == found["created"][: named["created"]]
    assert (named["created"] > 250, named["deleted"]) == (True, 3)
    assert sum(named.values()) + counted["more"] == 353


def test_all_are_named_where_there_is_room():
    """Up to a number of each kind."""
    counted = _counted(
        {"created": _files(MAX_CHANGED_FILES + 2, "a"), "modified": _files(2, "b"), "deleted": []}
    )
    assert [len(counted[kind]) for kind in ("created", "modified", "deleted")] == [MAX_CHANGED_FILES, 2, 0]
    assert counted["more"] == 2
