"""Text in JSON that never ends is passed over once, wherever values are counted before they are parsed.

Tried anew from each quote in it, a megabyte would hold up its process, and all that it serves, for an hour.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.values.json_values import check_values, parse
from fumehood.values.results import read_json


def saved(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the parser calls it
        parse(data, 2_000_000)


def shown(data: bytes) -> None:
    assert read_json(data) is None


def sent(data: bytes) -> None:
    # Whether it is JSON at all is the parser's to say.
    check_values(data)

    with pytest.raises(InvalidArgumentError):
        check_values(b"[" + b"1," * 3_000_000 + data)


@pytest.mark.parametrize("count", [saved, shown, sent])
@pytest.mark.parametrize("end", [b"", b"\\", b"\n"])
def test_it_is_passed_over_once(count: Callable[[bytes], None], end: bytes) -> None:
    """It is refused, and at once."""
    count(b'"' + b'\\"' * 100_000 + b"," * 2_100_000 + end)


def test_many_texts_are_counted_whatever_stands_before_their_quotes() -> None:
    """Quotes that look escaped and are not end texts too: the time for one body stays bounded."""
    with pytest.raises(InvalidArgumentError):
        check_values(b"," * 600_000 + rb"\"\\" * 1_000_000)
