"""JSON of others, read within bounds: a byte of it can cost thirty in memory, so its values are counted before.

Used in the host process, in threads; pure.
"""

from __future__ import annotations

import json
import re

MAX_VALUES = 2_000_000
# Text without an end goes to the end of all: where a match fails, another is tried from each quote behind.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def parse(content: bytes) -> object:
    """Returns the value that these bytes are.

    Raises:
        ValueError: They are no JSON, are nested too deeply, or hold more values than any saved state needs.
    """
    # What stands between quotes is text, and may have as many commas as it likes.
    if _count(content) > MAX_VALUES and (
        content.count(b'"') > 4 * MAX_VALUES or _count(_TEXT.sub(b"", content)) > MAX_VALUES
    ):
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")

    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _count(content: bytes) -> int:
    return sum(content.count(mark) for mark in (b",", b"[", b"{"))
