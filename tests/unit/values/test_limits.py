"""Limits: what exists is valid, everything else is refused with field, value and range."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from fumehood import InvalidArgumentError, Limits
from fumehood.bounds import BOUNDS

NAMES = [field.name for field in fields(Limits)]
OPTIONAL = ["cpu_seconds", "cpu_cores"]


def test_every_limit_has_a_bound_and_a_line_of_documentation():
    """The table, the fields and the docstring are one list."""
    assert list(BOUNDS) == NAMES
    assert all(f"{name}: " in (Limits.__doc__ or "") for name in NAMES)


def test_the_defaults_are_valid_and_cannot_be_changed():
    """A value that exists stays as it is."""
    limits = Limits()

    with pytest.raises(FrozenInstanceError):
        limits.wall_seconds = 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [0, -1, math.nan, math.inf, -math.inf, True, False, "5", b"5", [], 10**30, 1e300, {}],
    ids=repr,
)
def test_zero_negative_absurd_and_wrongly_typed_values_are_refused(name, value):
    """The refusal names the field, the value and what is allowed."""
    with pytest.raises(InvalidArgumentError) as caught:
        Limits(**{name: value})

    assert caught.value.field == f"limits.{name}"
    assert " from " in caught.value.allowed
    assert " to " in caught.value.allowed
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", NAMES)
def test_none_means_something_only_where_it_is_said(name):
    """Only shares of processor time may be unlimited."""
    if name in OPTIONAL:
        assert getattr(Limits(**{name: None}), name) is None
        return

    with pytest.raises(InvalidArgumentError):
        Limits(**{name: None})


@pytest.mark.parametrize("name", [name for name in NAMES if BOUNDS[name].whole])
def test_a_fraction_of_a_byte_is_refused(name):
    """Whole things are counted in whole numbers."""
    with pytest.raises(InvalidArgumentError, match="whole number"):
        Limits(**{name: BOUNDS[name].low + 0.5})


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_of_the_range_are_allowed(name):
    """A range holds its ends, and nothing beyond them."""
    bound = BOUNDS[name]
    kind = int if bound.whole else float

    for value in (kind(bound.low), kind(bound.high)):
        assert getattr(replace(Limits(), **{name: value}), name) == value

    for value in (kind(bound.low * 0.5), kind(bound.high * 2)):
        with pytest.raises(InvalidArgumentError):
            replace(Limits(), **{name: value})


def test_limits_are_named_never_positional():
    """A number without its name is no limit."""
    with pytest.raises(TypeError):
        Limits(5)
