"""Code as a model sends it, without the fence that it would have in a message.

Pure functions. It applies where code is a model's argument. `Sandbox.run_code` takes code as it is.
"""

from __future__ import annotations

_FENCE = "```"


def unfenced(code: str) -> str:
    """Return what is inside of code that is one whole fenced block, and other code as it is."""
    whole = code.strip()
    first, _, rest = whole.partition("\n")

    if not first.startswith(_FENCE) or not rest.endswith(_FENCE) or _FENCE in first[len(_FENCE) :]:
        return code

    return rest[: -len(_FENCE)]
