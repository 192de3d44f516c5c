"""How much a body of JSON may become: a byte of it can cost thirty in memory, and the loop stands still meanwhile.

Used in the server process, before anything parses a large body; pure. Text and files are long and cost what they are;
what is bounded is the number of values.
"""

from __future__ import annotations

from fumehood.errors import InvalidArgumentError
from fumehood.values.bounded_json import has_more_values

MAX_VALUES = 500_000


def check_values(body: bytes) -> None:
    """Lets a body pass that has no more values than any request needs.

    Raises:
        InvalidArgumentError: It has more.
    """
    if has_more_values(body, MAX_VALUES, MAX_VALUES):
        raise InvalidArgumentError(
            field="body",
            value=f"{len(body):,} bytes of many values",
            allowed=f"at most {MAX_VALUES:,} values",
        )
