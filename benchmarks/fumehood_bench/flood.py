"""1 GB printed by the guest: what it costs the host's memory, and whether the sandbox survives it.

The growth is the peak of this process against what it held before the flood, so nothing between two samples
is missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fumehood import Execution, Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import peak_resident_bytes, reset_peak, resident_bytes

_GIGABYTE = 10**9
_TARGET_MEGABYTES = 64.0
_LINE_BYTES = 100_000

_WAYS = {
    "print": """
line = "x" * {length}
for _ in range({lines}):
    print(line)
""",
    "os.write in a child process": """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import os
line = b"x" * {length} + b"\\\\n"
for _ in range({lines}):
    rest = line
    while rest:
        rest = rest[os.write(1, rest):]
'''], check=True)
""",
}


def _flood(sandbox: Sandbox, code: str, size_bytes: int) -> float:
    """Growth of this process in megabytes while `code` runs; checks what came of it."""
    reset_peak()
    before = resident_bytes()
    execution = sandbox.run_code(
        code.format(length=_LINE_BYTES - 1, lines=size_bytes // _LINE_BYTES), timeout=300
    )
    grown = peak_resident_bytes() - before
    _check(execution, size_bytes)
    assert sandbox.run_code("6 * 7").text == "42", "the next cell does not work"
    return grown / 1e6


def _check(execution: Execution, size_bytes: int) -> None:
    assert execution.error is None, execution.error
    kept = sum(len(text) for text in execution.logs.stdout if "left out here" not in text)
    dropped = execution.truncated.stdout_bytes
    assert kept + dropped == size_bytes, f"kept {kept} and reported {dropped} of {size_bytes} bytes"
    assert dropped > 0, "nothing was marked as cut off"


def measure(plan: Plan) -> Iterator[Figure]:
    """Growth of the host's memory, by each way to print."""
    size_bytes = _GIGABYTE // 10 if plan.quick else _GIGABYTE

    with Sandbox() as sandbox:
        for way, code in _WAYS.items():
            yield Figure(
                name=f"{size_bytes / 1e9:g} GB by {way}: host memory grows by",
                unit="MB",
                ours=_flood(sandbox, code, size_bytes),
                samples=1,
                target=_TARGET_MEGABYTES,
                note="capped, marked, next cell works",
            )
