"""The table of right credentials is bounded, and what one holder makes pushes out only its own."""

from __future__ import annotations

from fumehood.server.right_credentials import RightCredentials


def test_the_largest_holder_loses_its_oldest() -> None:
    table = RightCredentials(maximum=4)

    for digest, holder in ((b"1", "a"), (b"2", "b"), (b"3", "b"), (b"4", "b")):
        table.add(digest, holder)

    # Seen again, it is the latest.
    table.add(b"2", "b")
    table.add(b"5", "a")
    assert [digest for digest in (b"1", b"2", b"3", b"4", b"5") if digest in table] == [
        b"1",
        b"2",
        b"4",
        b"5",
    ]


def test_a_credential_has_one_holder_and_can_be_forgotten() -> None:
    table = RightCredentials(maximum=2)
    table.add(b"1", "a")
    table.add(b"1", "b")
    table.add(b"2", "a")
    assert b"1" in table
    assert b"2" in table

    table.discard(b"1")
    table.discard(b"1")
    assert b"1" not in table
    assert None not in table

    # What was forgotten takes no place.
    table.add(b"3", "c")
    assert b"2" in table
    assert b"3" in table
