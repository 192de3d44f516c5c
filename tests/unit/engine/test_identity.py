"""Names of sandboxes: of a fixed form, impossible to guess, and telling whose they are."""

from __future__ import annotations

import pytest

from fumehood import InvalidArgumentError
from fumehood.engine.identity import SandboxName, check_host_id, make_name, make_part, parse_name


def test_a_name_tells_whose_it_is():
    """Host and run are found again; the rest is different each time."""
    names = {make_name("host01", "run002") for _ in range(1000)}
    parsed = [parse_name(name) for name in names]

    assert len(names) == 1000
    assert {(name.host_id, name.incarnation, len(name.secret)) for name in parsed} == {
        ("host01", "run002", 20)
    }
    # Every character is used in every place.
    assert all(len({name.secret[place] for name in parsed}) == 36 for place in range(20))


def test_a_name_is_taken_apart():
    """The parts have fixed lengths."""
    assert parse_name("aaaaaabbbbbb" + 20 * "c") == SandboxName("aaaaaa", "bbbbbb", 20 * "c")


@pytest.mark.parametrize(
    "text", ["", "x", 31 * "a", 33 * "a", 32 * "A", 31 * "a" + "-", 32 * "a" + "\n", 32 * "٣"]
)
def test_what_no_host_has_made_is_no_name(text):
    """The form is exact."""
    assert parse_name(text) is None


def test_host_ids_are_checked():
    """A random one is right, others are named."""
    check_host_id("host_id", make_part())

    with pytest.raises(InvalidArgumentError, match="host_id='Abc' is refused"):
        check_host_id("host_id", "Abc")
