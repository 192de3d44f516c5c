"""What a child of the tests does to attack its own machine; run by `launching.py`, as whatever user.

Returns plain values to the test.
"""

from __future__ import annotations

import os
import secrets
from typing import Any


def card() -> dict[str, Any]:
    """Makes a scorecard, with a secret in the environment of this process."""
    secret = f"canary-{secrets.token_hex(16)}"
    os.environ["FUMEHOOD_DOCTOR_CANARY"] = secret
    # Late: the environment comes first.
    from fumehood.scorecard.running import run_scorecard

    return run_scorecard(secret, dict(os.environ), lambda said: None).to_dict()
