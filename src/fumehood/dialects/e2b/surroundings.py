"""The environment variables with which E2B describes a sandbox to its programs.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

ENVD_PORT = 49983
INTERPRETER_PORT = 49999
_TOLD = frozenset({"E2B_SANDBOX", "E2B_SANDBOX_ID"})


def shown_envs(sandbox_id: str, envs: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with E2B's own variables; the caller's values win."""
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox_id, **envs}


def given_envs(envs: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of a command's environment that its caller gave."""
    return {name: value for name, value in envs.items() if name not in _TOLD}
