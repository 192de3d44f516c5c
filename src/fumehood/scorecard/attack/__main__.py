"""`python -m attack NAME ARGUMENTS` prints the result of one probe; `batch PLAN` runs those of a file."""

from __future__ import annotations

import json
import sys

from .report import report

sys.stdout.write("<<" + report(sys.argv[1], *json.loads(sys.argv[2])) + ">>\n")
sys.stdout.flush()
