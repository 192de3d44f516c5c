"""What a sandbox may use (`Limits`) and what an execution has used (`Usage`): same words, units in the names.

Plain values of the host process. Nothing is enforced here. A `Limits` that exists is valid: zero, negative,
NaN, absurd and wrongly typed values are refused when it is made, so no other module checks them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from fumehood.errors import InvalidArgumentError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB


@dataclass(frozen=True, slots=True)
class Bound:
    """The allowed range of one limit."""

    low: float
    high: float
    unit: str
    whole: bool = True
    optional: bool = False

    def check(self, field: str, value: object) -> None:
        """Raise InvalidArgumentError unless `value` has the right type and lies in the range."""
        if value is None and self.optional:
            return

        # bool is an int to Python, and never what a caller means by a number.
        kinds = (int,) if self.whole else (int, float)

        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            raise InvalidArgumentError(field=field, value=value, allowed=self.describe())

    def describe(self) -> str:
        """Return the range in words."""
        kind = "a whole number" if self.whole else "a number"
        text = f"{kind} of {self.unit} from {plain_number(self.low)} to {plain_number(self.high)}"
        return f"{text}, or None" if self.optional else text


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox and each execution in it may use.

    Attributes:
        wall_seconds: Time of one execution. At its end the code is interrupted; `run_code(timeout=...)`
            replaces it for one call. 30 s, not E2B's 300: a loop that hangs should be known soon.
        cpu_seconds: CPU time of one execution and its children together; None means that `wall_seconds`
            alone decides.
        memory_bytes: Memory of the whole sandbox, files that its code writes included, since these live in
            memory. What is uploaded does not count. Without cgroups files do not count.
        processes: Processes and threads of the whole sandbox.
        cpu_cores: CPU share of the whole sandbox; None means no bound. Not held without cgroups.
        open_files: Open files of each process.
        disk_bytes: Bytes of all writable mounts together.
        inodes: Files and directories of all writable mounts together.
        stdout_bytes: Standard output kept of one execution or command; the rest is counted and dropped.
        stderr_bytes: The same of standard error.
        result_bytes: Size of one result, all its formats together; a larger format is left out and named.
        result_count: Results kept of one execution.
        grace_seconds: Time between the interrupt and the kill of code that does not stop.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float | None = None
    memory_bytes: int = 1 * GIB
    processes: int = 128
    cpu_cores: float | None = None
    open_files: int = 1024
    disk_bytes: int = 512 * MIB
    inodes: int = 65_536
    stdout_bytes: int = 1 * MIB
    stderr_bytes: int = 1 * MIB
    result_bytes: int = 10 * MIB
    result_count: int = 100
    grace_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            BOUNDS[field.name].check(f"limits.{field.name}", getattr(self, field.name))


def check_seconds(field: str, value: object, *, optional: bool = True, high: float = 86_400 * 365) -> None:
    """Raise InvalidArgumentError unless `value` is a positive number of seconds, or None where allowed."""
    if value is None and optional:
        return

    Bound(0.001, high, "seconds", whole=False, optional=optional).check(field, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one execution has used.

    Attributes:
        wall_seconds: Time from its start in the context to its end, measured by the host.
        user_cpu_seconds: CPU time in user code, by the control group's count of the whole sandbox; without
            one what the context says of itself and its children.
        system_cpu_seconds: CPU time in the kernel, likewise.
        peak_memory_bytes: Most memory of the whole sandbox meanwhile, by its control group (version 2 before
            kernel 6.12: since its start); without one the largest resident memory of the context so far.
        bytes_in: Code and answers sent into the sandbox.
        bytes_out: Output, results and errors that came out, before anything was cut off by the host.
    """

    wall_seconds: float = 0.0
    user_cpu_seconds: float = 0.0
    system_cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
