"""How much a body of JSON may become: a byte of it can cost thirty in memory, and the loop stands still meanwhile.

Used in the server process, before anything parses a large body; pure. Text and files are long and cost what they are;
what is bounded is the number of values.
"""

from __future__ import annotations

import re

from fumehood.errors import InvalidArgumentError

MAX_VALUES = 500_000
# Smaller ones cannot hold so many.
_SMALL_BYTES = MAX_VALUES
# Text without an end goes to the end of all: where a match fails, another is tried from each quote behind.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)


def check_values(body: bytes) -> None:
    """Lets a body pass that has no more values than any request needs.

    Raises:
        InvalidArgumentError: It has more.
    """
    if len(body) <= _SMALL_BYTES or _count(body) <= MAX_VALUES:
        return

    # What stands between quotes is text, and may have as many commas as it likes. Text in so many pieces is none.
    quotes = body.count(b'"') - body.count(b'\\"')

    if quotes > 2 * MAX_VALUES or _count(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise InvalidArgumentError(
            field="body",
            value=f"{len(body):,} bytes of many values",
            allowed=f"at most {MAX_VALUES:,} values",
        )


def _count(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b",", b"[", b"{"))
