"""A cell in a live context, against the same cell through jupyter_client and ipykernel.

Blocks of cells are taken in turn: within a block both sides run as they do in a busy session, with warm caches. They
are long, because what a side leaves to be done after its last reply falls into the other's block: ipykernel saves
its history then, and a client's threads read what still comes. With blocks of 20 ours takes half as long again.
"""

from __future__ import annotations

from collections.abc import Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.floor import CELL, Floor
from fumehood_bench.reference import JUPYTER_CELL, jupyter_kernel
from fumehood_bench.timing import in_turn, milliseconds, percentile

_CODE = "y = 1"
_BLOCK = 250


def measure(plan: Plan) -> Iterator[Figure]:
    """The p50 of one cell."""
    with Floor() as floor, jupyter_kernel() as kernel, Sandbox() as sandbox:
        samples = in_turn(
            plan.repetitions(1000),
            block=_BLOCK,
            ours=lambda: milliseconds(lambda: sandbox.run_code(_CODE)),
            reference=lambda: milliseconds(lambda: kernel.run_cell(_CODE)),
            floor=floor.cell,
        )

    yield Figure(
        name="cell `y = 1` in a live context, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=len(samples["ours"]),
        target=0.15,
        reference=percentile(samples["reference"], 50),
        reference_name=JUPYTER_CELL,
        floor=percentile(samples["floor"], 50),
        floor_name=CELL,
    )
