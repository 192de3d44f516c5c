"""X16: the short form of `make soak`, which is the same program with fewer runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_x16_a_short_soak() -> None:
    """No wrong result among mixed and hostile runs, and afterwards everything is counted.

    Its memory may change more than in the long form: after so few runs it has not seen everything once.
    """
    command = [sys.executable, "-m", "tests.soak", "--runs", "150", "--warm-up", "60", "--seed", "16"]
    done = subprocess.run(
        [*command, "--memory-slack", "0.3", "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    assert "150 runs" in done.stdout
    assert "NOT AS BEFORE" not in done.stdout
