"""Bounds of numbers that callers give: units, the range of each limit, and how a value of one is written.

Pure data and arithmetic; imports no other module of fumehood, so that the module of errors can import it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
# Of the own processes of a template in which an image's Python runs, where no setting says otherwise.
TEMPLATE_MEMORY_BYTES = 2 * GIB

# Of events that wait for a reader, besides the output that the limits allow: only endless updates reach it.
SLOW_READER_BYTES = 80 * MIB

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


@dataclass(frozen=True, slots=True)
class Bound:
    """The allowed range of one limit."""

    low: float
    high: float
    unit: str
    whole: bool = True
    optional: bool = False

    def allows(self, value: object) -> bool:
        """Return whether `value` has the right type and lies in the range."""
        if value is None:
            return self.optional

        # bool is an int to Python, and never what a caller means by a number.
        kinds = (int,) if self.whole else (int, float)
        return not isinstance(value, bool) and isinstance(value, kinds) and self.low <= value <= self.high

    def describe(self) -> str:
        """Return the range as text for a message."""
        kind = "a whole number" if self.whole else "a number"
        text = f"{kind} of {self.unit} from {plain_number(self.low)} to {plain_number(self.high)}"
        return f"{text}, or None" if self.optional else text


def read_size(text: str) -> int | None:
    """Return the bytes of a size such as `512M`, `2G` or `1.5 GiB`, units by 1024; None when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def plain_number(value: float) -> str:
    """Return a number as people write it, never with an exponent: `1,073,741,824`, `0.5`."""
    if not math.isfinite(value):
        return str(value)

    return f"{value:,.0f}" if value == math.floor(value) else f"{value:,.3f}".rstrip("0").rstrip(".")


def limit_in_words(name: str, value: float) -> str:
    """Return the value of a limit with its unit; whole mebibytes and gibibytes as such."""
    for unit, size in (("GiB", GIB), ("MiB", MIB)):
        if name.endswith("_bytes") and value >= size and value % size == 0:
            return f"{plain_number(value // size)} {unit}"

    bound = BOUNDS.get(name)
    return f"{plain_number(value)} {bound.unit}" if bound else plain_number(value)


# The low ends are what a Python still starts with; the high ends are what no single machine of today exceeds.
BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        "wall_seconds": Bound(0.01, 86_400, "seconds", whole=False),
        "cpu_seconds": Bound(0.01, 86_400 * 64, "seconds", whole=False, optional=True),
        "memory_bytes": Bound(64 * MIB, 4 * TIB, "bytes"),
        "processes": Bound(4, 32_768, "processes"),
        "cpu_cores": Bound(0.01, 1024, "cores", whole=False, optional=True),
        "open_files": Bound(64, 1_048_576, "files"),
        "disk_bytes": Bound(1 * MIB, 16 * TIB, "bytes"),
        "inodes": Bound(256, 100_000_000, "inodes"),
        "stdout_bytes": Bound(1, 1 * GIB, "bytes"),
        "stderr_bytes": Bound(1, 1 * GIB, "bytes"),
        # One result travels in one frame, whose payload the wire bounds at 16 MiB.
        "result_bytes": Bound(1, 15 * MIB, "bytes"),
        "result_count": Bound(1, 10_000, "results"),
        "grace_seconds": Bound(0.01, 60, "seconds", whole=False),
    }
)
