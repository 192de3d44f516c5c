"""Resource limits: hard equals soft, and nothing is ever raised."""

import errno
import os
import resource

import pytest

from fumehood_jail import rlimits


def test_limits_are_set_for_good(in_child):
    """Both limits are set, and the process itself cannot open more files than that."""

    def limit():
        # More than the whole suite holds open when it comes to this test.
        applied = rlimits.apply({"nofile": 512, "core": 0})
        opened = []
        try:
            while True:
                opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            number = error.errno

        return [applied, resource.getrlimit(resource.RLIMIT_NOFILE), number, max(opened) < 512]

    assert in_child(limit) == [{"nofile": 512, "core": 0}, [512, 512], errno.EMFILE, True]


def test_the_inherited_hard_limit_stays(in_child):
    """A limit above the inherited one is lowered to it, and the result says so."""

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        return [rlimits.apply({"nofile": 1000}), resource.getrlimit(resource.RLIMIT_NOFILE)]

    assert in_child(limit) == [{"nofile": 64}, [64, 64]]


@pytest.mark.parametrize("value", [-1, True, 1.5, "64", None])
def test_values_must_be_whole_numbers(value):
    """Anything but a whole number from 0 up is refused before it reaches the kernel."""
    with pytest.raises(ValueError, match="whole number"):
        rlimits.apply({"nofile": value})


def test_unknown_names_are_refused():
    """A misspelt name is not quietly ignored."""
    with pytest.raises(ValueError, match="'nofiles'"):
        rlimits.apply({"nofiles": 1})
