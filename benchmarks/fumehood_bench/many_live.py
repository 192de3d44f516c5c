"""Two thousand live sandboxes: whether a call takes as long as with ten, and whether nothing is left of them.

Runs in a process whose pool is off, and takes 16 GB of memory: it is in no run of all groups. Each sandbox is asked
once; then every tenth is asked again and again, in turn.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.processes import descendants
from fumehood_bench.timing import milliseconds, percentile

_LIVE = 2000
_FEW = 10
_TIMES = 5
_TARGET_RATIO = 2.0
_END_SECONDS = 60.0


def _ask(sandbox: Sandbox) -> float:
    def ask() -> None:
        execution = sandbox.run_code("answer = 6 * 7\nanswer")
        assert execution.text == "42", execution

    return milliseconds(ask)


def _asked_again(sandboxes: Sequence[Sandbox], times: int) -> list[float]:
    return [_ask(sandbox) for _ in range(times) for sandbox in sandboxes]


def _left_after_the_end(before: set[int]) -> int:
    """How many processes are left; waits for those that are just ending."""
    deadline = time.monotonic() + _END_SECONDS

    while (left := len(descendants() - before)) and time.monotonic() < deadline:
        time.sleep(0.2)

    return left


def measure(plan: Plan) -> Iterator[Figure]:
    """How long calls take beside ten live sandboxes and beside all, and what is left of these at the end."""
    count = plan.repetitions(_LIVE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Sandbox().kill()
    before = descendants()
    sandboxes: list[Sandbox] = []
    try:
        sandboxes.extend(Sandbox(timeout=None) for _ in range(_FEW))
        _asked_again(sandboxes, 1)
        few = _asked_again(sandboxes, count // _FEW // _FEW * _TIMES)
        begun = time.perf_counter()
        sandboxes.extend(Sandbox(timeout=None) for _ in range(count - _FEW))
        making_seconds = time.perf_counter() - begun
        slowest = max(_asked_again(sandboxes, 1))
        many = _asked_again(sandboxes[::_FEW], _TIMES)
    finally:
        for sandbox in sandboxes:
            sandbox.kill()

        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield Figure(
        name=f"{count} live sandboxes, a tenth asked again and again, p50",
        unit="ms",
        ours=percentile(many, 50),
        samples=len(many),
        target=_TARGET_RATIO,
        reference=percentile(few, 50),
        reference_name=f"the same beside {_FEW} live sandboxes",
        note=f"the slowest first answer: {slowest:.1f} ms; made in {making_seconds:.0f} s",
    )
    yield Figure(
        name=f"{count} live sandboxes, all ended: processes left",
        unit="",
        ours=float(_left_after_the_end(before)),
        samples=count,
        target=0.0,
    )
