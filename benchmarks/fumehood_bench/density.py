"""Many live sandboxes at once: what memory each holds, and whether all of them answer.

Runs in a process whose pool is off, so that every process below it belongs to a sandbox in use. Memory is
the PSS of init and context together, from /proc/PID/smaps_rollup: private pages in full, shared ones
divided by their sharers.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import descendants, memory_bytes
from fumehood_bench.timing import milliseconds

_TARGET_MEGABYTES = 12.0
_TARGET_MILLISECONDS = 100.0
_WORK = """
import pandas as pd
frame = pd.DataFrame({"a": range(1000), "b": [str(i) for i in range(1000)]})
"""


def _worked() -> Sandbox:
    sandbox = Sandbox()
    execution = sandbox.run_code(_WORK)
    assert execution.error is None, execution.error
    return sandbox


def _ask(sandbox: Sandbox) -> float:
    def ask() -> None:
        assert sandbox.run_code("len(frame)").text == "1000"

    return milliseconds(ask)


def _memory_megabytes(others: set[int], count: int) -> tuple[float, float]:
    """Proportional and private memory per sandbox of all processes that are not among `others`."""
    pids = descendants() - others
    assert len(pids) == 2 * count, (
        f"{len(pids)} processes in {count} sandboxes; init and context were expected"
    )
    sizes = [memory_bytes(pid) for pid in pids]
    return sum(pss for pss, _ in sizes) / count / 1e6, sum(private for _, private in sizes) / count / 1e6


def measure(plan: Plan) -> Iterator[Figure]:
    """Memory of each and the slowest answer of all."""
    count = plan.repetitions(500)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Sandbox().kill()
    others = descendants()
    sandboxes: list[Sandbox] = []
    try:
        sandboxes.append(_worked())
        alone, _ = _memory_megabytes(others, 1)
        sandboxes.extend(_worked() for _ in range(count - 1))
        shared, private = _memory_megabytes(others, count)
        slowest = max(_ask(sandbox) for sandbox in sandboxes)
    finally:
        for sandbox in sandboxes:
            sandbox.kill()

        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield Figure(
        name=f"memory (PSS) per sandbox, {count} live",
        unit="MB",
        ours=shared,
        samples=count,
        target=_TARGET_MEGABYTES,
        note=f"private {private:.1f} MB; a sandbox that is alone with its zygote: {alone:.1f} MB",
    )
    yield Figure(
        name=f"{count} live sandboxes asked in turn, slowest",
        unit="ms",
        ours=slowest,
        samples=count,
        target=_TARGET_MILLISECONDS,
    )
