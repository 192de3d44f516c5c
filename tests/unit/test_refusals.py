"""What is refused is told by the name that it was given under, and stays the error that it is."""

from __future__ import annotations

import pickle

import pytest

from fumehood.errors import InvalidArgumentError, TemplateError
from fumehood.refusals import naming_arguments


def test_a_refusal_takes_the_name_of_the_option():
    """Value and way out are as they were; also on the other side of a process border."""
    with (
        pytest.raises(InvalidArgumentError) as refused,
        naming_arguments({"limits.wall_seconds": "--timeout"}),
    ):
        raise InvalidArgumentError(
            field="limits.wall_seconds", value="limits.wall_seconds", allowed="a number"
        )

    for error in (refused.value, pickle.loads(pickle.dumps(refused.value))):
        assert str(error) == "--timeout='limits.wall_seconds' is refused\n\nhint: --timeout takes a number"
        assert (error.field, error.allowed) == ("--timeout", "a number")


def test_what_has_no_other_name_keeps_its_own():
    """So does what is to be installed, and what is no refusal of a value."""
    with pytest.raises(InvalidArgumentError, match="port takes a number"), naming_arguments({"url": "--url"}):
        raise InvalidArgumentError(field="port", value=5, allowed="a number")

    with pytest.raises(InvalidArgumentError) as refused, naming_arguments({"url": "--url"}):
        raise InvalidArgumentError(field="url", value="x", allowed="httpx2", extra="client")

    assert str(refused.value) == "--url='x' needs httpx2\n\nhint: pip install 'fumehood[client]'"

    with pytest.raises(TemplateError, match="template 'x'"), naming_arguments({"template": "--template"}):
        raise TemplateError(template="x", reason="it is unknown")
