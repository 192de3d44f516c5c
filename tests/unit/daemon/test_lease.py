"""The lease of a machine: what begins, extends and ends it, by a clock of the test's own."""

from __future__ import annotations

from fumehood.daemon.lease import LEASE_SECONDS, Lease


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_there_is_no_lease_before_a_cluster_asks() -> None:
    """A host daemon without a cluster ends nothing."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    clock.seconds += 10 * LEASE_SECONDS
    assert not lease.is_over


def test_it_lasts_from_the_moment_of_the_answer_whose_token_came_back() -> None:
    """Not from the moment at which it came: what was long on its way extends it no more."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    lease.note_request("")
    token = lease.token()
    clock.seconds += LEASE_SECONDS - 1
    lease.note_request(token)
    assert not lease.is_over
    clock.seconds += 2
    assert lease.is_over


def test_a_token_extends_it() -> None:
    """Each answer has a new one."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    lease.note_request("")

    for _ in range(10):
        clock.seconds += LEASE_SECONDS / 2
        token = lease.token()
        clock.seconds += 1
        lease.note_request(token)

    assert not lease.is_over


def test_requests_without_its_tokens_do_not_extend_it() -> None:
    """Those of a server that has not seen the machine among the cluster's, and tokens of another run or none at all."""
    clock = Clock()
    lease, other = Lease("abcdef", clock), Lease("ghijkl", clock)
    lease.note_request("")
    clock.seconds += LEASE_SECONDS - 1

    for token in ("", other.token(), "abcdef.1e9", "abcdef.nan", "abcdef.", "abcdef", "x" * 64):
        lease.note_request(token)

    clock.seconds += 2
    assert lease.is_over


def test_one_that_is_over_begins_again_with_a_token() -> None:
    """The machine is back: what is made from then on has a lease again."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    lease.note_request("")
    clock.seconds += LEASE_SECONDS + 1
    assert lease.is_over
    lease.note_request(lease.token())
    assert not lease.is_over


def test_what_lived_before_it_was_over_is_told_from_what_is_new() -> None:
    """By tokens: one of before says that the lease was over since; one of later, of another run or none does not."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    lease.note_request("")
    before = lease.token()
    clock.seconds += LEASE_SECONDS + 1
    assert not lease.was_over_since(before)
    clock.seconds += 1
    token = lease.token()
    clock.seconds += 1
    lease.note_request(token)
    assert lease.was_over_since(before)
    others = (lease.token(), Lease("ghijkl", clock).token(), "", "abcdef", "abcdef.", "abcdef.nan", "x" * 64)
    assert not any(lease.was_over_since(other) for other in others)


def test_one_that_is_over_can_end_for_good() -> None:
    """The machine has left its cluster; one that lasts does not end that way, and another cluster begins a new one."""
    clock = Clock()
    lease = Lease("abcdef", clock)
    lease.note_request("")
    lease.leave()
    clock.seconds += LEASE_SECONDS + 1
    assert lease.is_over
    lease.leave()
    clock.seconds += 10 * LEASE_SECONDS
    assert not lease.is_over
    lease.note_request("")
    clock.seconds += LEASE_SECONDS + 1
    assert lease.is_over
