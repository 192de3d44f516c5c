"""Removes the Markdown fence around code that a model sends as an argument.

Pure functions. Only for code that is a model's argument. `Sandbox.run_code` takes code unchanged.
"""

from __future__ import annotations

_FENCE = "```"


def unfenced(code: str) -> str:
    """Return the content of code that is one whole fenced block, and other code unchanged."""
    whole = code.strip()
    first, _, rest = whole.partition("\n")

    if not first.startswith(_FENCE) or not rest.endswith(_FENCE) or _FENCE in first[len(_FENCE) :]:
        return code

    return rest[: -len(_FENCE)]
