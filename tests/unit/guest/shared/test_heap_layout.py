"""After the freeze small objects are made close together, wherever imports have left room."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, random, sys
gc.disable()
from fumehood_guest.shared import heap_layout as gaps

# Room for one or two in each pool, all over the heap.
random.seed(1)
objects = [bytes(random.randrange(1, 470)) for _ in range(60_000)]
random.shuffle(objects)
del objects[58_000:]

def spread(size):
    made = [bytes(size) for _ in range(100)]
    return len({id(one) >> 14 for one in made})

before = sum(spread(size) for size in range(100, 400, 50))
gaps.freeze()
after = sum(spread(size) for size in range(100, 400, 50))
print(before, after, int(gc.isenabled()))
"""


def test_what_is_made_after_the_freeze_lies_close_together() -> None:
    """It is collected too, though nothing was while the process imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    before, after, is_collected = map(int, done.stdout.split())
    assert before > 100
    assert after < 30
    assert is_collected
