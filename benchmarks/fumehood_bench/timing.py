"""Clocks and percentiles: samples are taken in turn, so that both sides see the same machine.

Used in the measuring process only. A sample is one call; nothing is averaged before the percentiles are
taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Samples = dict[str, list[float]]


def milliseconds(action: Callable[[], object]) -> float:
    """How long one call of `action` takes."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def in_turn(
    repetitions: int, *, block: int = 1, warm_up: int = 3, **measures: Callable[[], float]
) -> Samples:
    """Takes samples of each measure, one measure after the other.

    Args:
        repetitions: Samples of each measure.
        block: Samples of one measure before it is the next one's turn.
        warm_up: Samples at the start of each measure that are thrown away.
        measures: What to measure; each call returns one sample.
    """
    samples: Samples = {name: [] for name in measures}

    for measure in measures.values():
        for _ in range(warm_up):
            measure()

    for _ in range(0, repetitions, block):
        for name, measure in measures.items():
            samples[name].extend(measure() for _ in range(block))

    return samples


def percentile(values: list[float], percent: float) -> float:
    """The smallest sample that `percent` of all samples do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
