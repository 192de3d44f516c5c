"""JSON of others, counted before it is parsed: a byte of it can cost thirty in memory.

Pure. What stands between quotes is text, and may hold as many commas as it likes; what is bounded is the number of
values, and of texts. Each of the functions takes time in proportion to the bytes, whatever they are.
"""

from __future__ import annotations

import json
import re

# Text without an end goes to the end of all: where a match fails, another is tried from each quote behind.
JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def has_more_values(content: bytes, max_values: int, max_texts: int) -> bool:
    """Return whether a JSON text holds more values, or in case of doubt more texts, than this; it need not be JSON."""
    # Each value but the first of all has one such mark before it.
    if len(content) <= max_values or count_values(content) <= max_values:
        return False

    rest, texts = JSON_STRING.subn(b"", content, count=max_texts + 1)
    return texts > max_texts or count_values(rest) > max_values


def count_values(content: bytes) -> int:
    """Return how many values a JSON text has at most, marks inside texts counted too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def parse(content: bytes, max_values: int) -> object:
    """Return the value that these bytes are.

    Raises:
        ValueError: They are no JSON, are nested too deeply, or hold more values than `max_values`.
    """
    if has_more_values(content, max_values, 2 * max_values):
        raise ValueError(f"it holds more than {max_values:,} values")

    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
