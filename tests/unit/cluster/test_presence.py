"""When a server calls the sandboxes of a machine lost, and which tokens it sends back; by times of the test's own."""

from __future__ import annotations

from fumehood.cluster.machine import MachinePresence

_GRACE = 60.0


def looked(presence: MachinePresence, first: int, last: int, *, ended: int = 1) -> None:
    """Looks once a second that do not find the machine."""
    for second in range(first, last + 1):
        presence.note_away(float(second), ended)


def there() -> MachinePresence:
    """A machine that a look has just found."""
    presence = MachinePresence(_GRACE)
    presence.note_there(100.0, 0)
    return presence


def test_a_machine_is_lost_when_it_was_away_all_the_time() -> None:
    """From the first look that did not find it."""
    presence = there()
    looked(presence, 101, 161)
    assert (presence.is_gone, presence.is_lost) == (True, False)
    looked(presence, 162, 162)
    assert presence.is_lost


def test_what_was_not_seen_is_not_counted() -> None:
    """After a time without looks, such as without Ray's head, the machine may have been there meanwhile."""
    presence = there()
    looked(presence, 101, 140)
    looked(presence, 170, 230)
    assert not presence.is_lost
    looked(presence, 231, 231)
    assert presence.is_lost


def test_a_machine_that_was_back_between_two_looks_is_counted_anew() -> None:
    """Ray says how many times it has left."""
    presence = there()
    looked(presence, 101, 140)
    looked(presence, 141, 201, ended=2)
    assert not presence.is_lost
    looked(presence, 202, 202, ended=2)
    assert presence.is_lost


def test_a_machine_that_is_back_has_to_be_told_that_it_was_lost() -> None:
    """Unless it was away for a shorter time; without a look in between it stays lost."""
    presence = there()
    looked(presence, 101, 120)
    presence.note_there(121.0, 1)
    assert not presence.was_lost
    looked(presence, 122, 200, ended=2)
    looked(presence, 900, 900, ended=3)
    assert presence.is_lost
    presence.note_there(901.0, 3)
    assert (presence.is_gone, presence.is_lost, presence.was_lost) == (False, False, True)


def test_a_token_is_sent_back_after_a_look_that_began_later() -> None:
    """Once; one that is waiting is not replaced, or none would ever be old enough."""
    presence = there()
    presence.note_token("first", 100.2)
    presence.note_token("second", 100.7)
    assert presence.take_token() == ""
    presence.note_there(101.0, 0)
    assert presence.take_token() == "first"
    assert presence.take_token() == ""
    presence.note_token("third", 101.2)
    presence.note_there(102.0, 0)
    assert presence.take_token() == "third"


def test_the_token_of_a_machine_that_was_away_is_never_sent_back() -> None:
    """Also not when it is back: it says nothing of the time between."""
    presence = there()
    presence.note_token("first", 100.2)
    looked(presence, 101, 101)
    assert presence.take_token() == ""
    presence.note_there(102.0, 1)
    assert presence.take_token() == ""


def test_the_last_token_is_known_although_another_waits() -> None:
    """It says what the machine was asked for last before it was lost."""
    presence = there()
    presence.note_token("first", 100.2)
    presence.note_token("second", 100.7)
    looked(presence, 101, 162)
    assert (presence.is_lost, presence.last_token) == (True, "second")
