"""What a child of the tests does to attack its own machine; run by `launching.py`, as whatever user.

Returns plain values to the test.
"""

from __future__ import annotations

import os
import secrets


def what_gets_through() -> dict[str, list[str]]:
    """Runs every probe in every kind of process of a sandbox, with a secret in the environment of this process."""
    secret = f"canary-{secrets.token_hex(16)}"
    os.environ["FUMEHOOD_DOCTOR_CANARY"] = secret
    # Late: the environment comes first.
    from fumehood.scorecard.rows import ROWS
    from fumehood.scorecard.run import Attempts, run_probes
    from fumehood.scorecard.scene import AttackFixtures

    attempts = {row.id: Attempts(row.id) for row in ROWS}

    with AttackFixtures(secret) as stage:
        run_probes(stage.columns["fumehood"], attempts, lambda said: None)

    return {row: tried.got + tried.reasons for row, tried in attempts.items() if tried.got or tried.reasons}
