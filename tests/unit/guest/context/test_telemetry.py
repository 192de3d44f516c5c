"""Telemetry belongs to one cell: what is still being looked at when that ends is nobody's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In an interpreter of its own: a hook stays in it for good. Whoever looks at an address runs code of the guest's,
# during which a cell may end, as a thread may run on behind one.
PROGRAM = """
import sys
from fumehood_guest.context.telemetry import Telemetry

telemetry = Telemetry()

class Address:
    def __str__(self):
        for step in {meanwhile}:
            getattr(telemetry, step)()

        return "late"

telemetry.begin()
sys.audit("socket.connect", None, Address())
sys.audit("socket.connect", None, "next")
print(telemetry.end().decode())
"""


@pytest.mark.parametrize(
    ("meanwhile", "told"),
    [((), ["late", "next"]), (("end",), []), (("end", "begin"), ["next"])],
    ids=["the same cell", "its end", "the next cell"],
)
def test_what_was_begun_in_a_cell_is_noted_in_that_one(meanwhile, told):
    """When it has ended nobody listens any more, and the next one has not done it."""
    program = PROGRAM.format(meanwhile=meanwhile)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [line["detail"] for line in json.loads(done.stdout)] == told
