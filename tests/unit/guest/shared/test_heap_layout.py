"""After the freeze small objects are made close together, wherever imports have left room."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, random, sys
from fumehood_guest.shared import heap_layout as gaps
thresholds = gc.get_threshold()
gaps.put_off_collections()
is_put_off = gc.isenabled() and gc.get_threshold()[0] == 0

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
is_put_off = is_put_off and gc.get_threshold() == thresholds
# As a module of the template may do.
gc.disable()
gaps.put_off_collections()
gaps.freeze()
print(before, after, int(is_put_off), int(gc.isenabled()))
"""


def test_what_is_made_after_the_freeze_lies_close_together() -> None:
    """It is collected too, though nothing was while the process imported; unless a module has disabled that."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    before, after, is_put_off, is_enabled = map(int, done.stdout.split())
    assert before > 100
    assert after < 30
    assert is_put_off
    assert not is_enabled
