"""A sandbox of an image with a CPython of its own, and its first cell, where the pool has one ready: as by default.

Each sample is followed by a pause, in which the pool makes the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.images import OWN, REFERENCE, TARGET, first_cell, templates
from fumehood_bench.timing import in_turn, percentile

# Much longer than an interpreter takes to start.
_PAUSE_SECONDS = 3.0


def measure(plan: Plan) -> Iterator[Figure]:
    """One that was ready, in turn with one of the default template."""
    with templates():
        samples = in_turn(
            plan.repetitions(30), ours=lambda: _after_a_pause(OWN), reference=lambda: _after_a_pause(None)
        )

    yield Figure(
        name="sandbox and first cell, image's CPython, its own, from the pool, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=len(samples["ours"]),
        target=TARGET,
        reference=percentile(samples["reference"], 50),
        reference_name=REFERENCE,
    )


def _after_a_pause(template: str | None) -> float:
    time.sleep(_PAUSE_SECONDS)
    return first_cell(template)
