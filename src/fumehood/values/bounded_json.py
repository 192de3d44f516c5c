"""Counts the values of untrusted JSON before it is parsed: a byte of it can cost thirty in memory.

Pure. Text between quotes may hold any number of commas; the number of values, and of texts, is bounded. Each function
takes time in proportion to the bytes, for any input.
"""

from __future__ import annotations

import json
import re

from fumehood.errors import InvalidArgumentError

# More than any request needs.
MAX_VALUES_OF_BODY = 500_000

# An unterminated text extends to the end: if the match failed, another would be tried from each later quote.
JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def has_more_values(content: bytes, max_values: int, max_texts: int) -> bool:
    """Return whether a JSON text holds more values, or in case of doubt more texts, than this; it need not be JSON."""
    # Each value except for the first has one such mark before it.
    if len(content) <= max_values or count_values(content) <= max_values:
        return False

    rest, texts = JSON_STRING.subn(b"", content, count=max_texts + 1)
    return texts > max_texts or count_values(rest) > max_values


def check_values(body: bytes) -> None:
    """Check that a body has no more values than any request needs.

    Raises:
        InvalidArgumentError: It has more.
    """
    if has_more_values(body, MAX_VALUES_OF_BODY, MAX_VALUES_OF_BODY):
        raise InvalidArgumentError(
            field="body",
            value=f"{len(body):,} bytes of many values",
            allowed=f"at most {MAX_VALUES_OF_BODY:,} values",
        )


def count_values(content: bytes) -> int:
    """Return an upper bound of the values in a JSON text: marks inside texts are counted too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def parse(content: bytes, max_values: int) -> object:
    """Parse JSON.

    Raises:
        ValueError: It is no JSON, is nested too deeply, or holds more values than `max_values`.
    """
    if has_more_values(content, max_values, 2 * max_values):
        raise ValueError(f"it holds more than {max_values:,} values")

    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
